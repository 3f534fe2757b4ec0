//! The processes of the base's container go on on the lightweight kernel, and come back.

use std::fs;

use serde_json::Value;

use super::{BASE, NODE, nothing_is_left};
use crate::base::Finding;
use crate::base::scenario::container::move_linux::failures::piped;
use crate::base::scenario::container::move_linux::streams::Streams;
use crate::base::scenario::container::move_linux::{NAME, inspected, wait_for_line};
use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, text, try_insula, wait_for,
};

/// The node of the lightweight kernel.
const QUIET: &str = "quiet";
/// A container of several processes.
const MANY: &str = "many";
/// File by which the first of them is told to fork another.
const FORK: &str = "/tmp/fork";
/// Three processes, each of which tells its number again and again. On the node the first one's heap shrinks, and grows to
/// where it is still smaller than before.
const COUNTERS: &str = r#"
import os, time
number = 0
blocks = [b"a" * 100000 for _ in range(80)]
for other in (1, 2):
    if os.fork() == 0:
        number = other
        break
print("ready", flush=True)
while True:
    if any(block != block[:1] * 100000 for block in blocks):
        break
    os.write(1, b"%d\n" % number)
    time.sleep(0.1)
    if number == 0 and os.path.exists("/tmp/fork"):
        os.unlink("/tmp/fork")
        blocks = None
        blocks = [b"b" * 100000 for _ in range(40)]
        if os.fork() == 0:
            number = 3
"#;
/// The container's record.
const RECORD: &str = "/run/insula/containers/shop.json";
/// Its processes go on on a node of the lightweight kernel, and come back; so do several at once.
pub(super) fn moves(streams: &Streams) -> Result<(), Finding> {
    run_quiet()?;
    insula(&["move", "--check", NAME, QUIET])?;
    killed_on_the_way(streams)?;
    println!("{}", insula(&["move", NAME, QUIET])?.trim_end());
    streams
        .go_on()
        .map_err(|error| error.when("on the lightweight kernel"))?;
    let found = inspected()?;
    assert_equal("its place", &text(&found["node"]).as_str(), &BASE)?;
    assert_equal(
        "its cores' node",
        &text(&found["lwk_node"]).as_str(),
        &QUIET,
    )?;
    let listed = insula(&["ps", "--format", "{{.Names}} {{.Node}}"])?;
    let line = format!("{NAME} {QUIET}");
    Finding::unless(listed.lines().any(|one| one == line), || listed.clone())?;
    try_insula(&["exec", "-u", "nobody", QUIET, "--", "true"])?
        .refused(125, &["this command's user"])?;
    let first = ["`insula move shop base` first"];
    try_insula(&["move", NAME, NODE])?.refused(1, &first)?;
    try_insula(&["checkpoint", NAME, "--export", "/run/none"])?.refused(1, &first)?;
    println!("{}", insula(&["move", NAME, BASE])?.trim_end());

    several_at_once()?;
    insula(&["rm", "--force", QUIET]).map(drop)
}

/// Several processes move at once, with one that the first has forked there; when their node ends, so do they.
fn several_at_once() -> Result<(), Finding> {
    let start = ["exec", "--container", MANY, "-d", BASE, "--"];
    insula(&[&start[..], &["python3", "-c", COUNTERS]].concat())?;
    wait_for_line(MANY, "ready")?;
    move_all(QUIET, 3)?;
    insula(&["exec", MANY, "touch", FORK])?;
    let all = ["0", "1", "2", "3"];
    go_on(&all)?;
    move_all(BASE, 4)?;
    go_on(&all)?;
    move_all(QUIET, 4)?;
    go_on(&all)?;
    insula(&["rm", "--force", QUIET])?;
    wait_for("its end to be known", || {
        let found = &insula_json(&["inspect", MANY])?[0];
        Ok((text(&found["state"]) == "exited").then_some(()))
    })?;
    let found = &insula_json(&["inspect", MANY])?[0];
    assert_equal("its status", &found["exit_code"], &125.into())?;
    insula(&["rm", MANY])?;
    run_quiet()
}

fn move_all(to: &str, count: usize) -> Result<(), Finding> {
    let told = insula(&["move", MANY, to])?;
    println!("{}", told.trim_end());
    let moved = format!("runs on '{to}': {count} processes");
    Finding::unless(told.contains(&moved), || told)
}

/// Each of them tells its number again.
fn go_on(numbers: &[&str]) -> Result<(), Finding> {
    let before = insula(&["logs", MANY])?.lines().count();
    wait_for("all of its processes to go on", || {
        let log = insula(&["logs", MANY])?;
        let since: Vec<_> = log.lines().skip(before).collect();
        let goes_on = |name: &&str| since.iter().filter(|line| *line == name).count() > 1;
        Ok(numbers.iter().all(goes_on).then_some(()))
    })
}

fn run_quiet() -> Result<(), Finding> {
    let run = ["run", "--image", "lwk", "--name", QUIET];
    insula(&[&run[..], &["--cpus", "1", "--memory", "128M"]].concat()).map(drop)
}

/// The command is killed while it moves the processes: the container goes on, and is not moved elsewhere as long as
/// one may be on the node.
fn killed_on_the_way(streams: &Streams) -> Result<(), Finding> {
    let mut moving = piped(command(&["move", NAME, QUIET]))?;
    wait_for("the move to be recorded", || {
        let record = fs::read_to_string(RECORD)?;
        Ok(record.contains("lwk_node").then_some(()))
    })?;
    moving.kill()?;
    moving.wait()?;
    try_insula(&["move", NAME, NODE])?.refused(1, &["are on 'quiet'"])?;
    streams
        .go_on()
        .map_err(|error| error.when("after a move to the lightweight kernel was killed"))?;
    // Back from there, or found not to have left.
    let back = try_insula(&["move", NAME, BASE])?;
    if back.status != Some(0) {
        back.refused(1, &["is on 'base' already"])?;
    }
    assert_equal("its cores' node", &inspected()?["lwk_node"], &Value::Null)
}

/// It is written to a folder, and restored from there: on the lightweight kernel.
pub(super) fn in_a_folder(address: &str) -> Result<(), Finding> {
    let folder = "/run/checkpoint-of-shop";
    insula(&["checkpoint", NAME, "--export", folder])?;
    nothing_is_left()?;
    run_quiet()?;
    insula(&["restore", QUIET, "--import", folder])?;
    Streams::start(address, 1)?.end()?;
    assert_equal(
        "its cores' node",
        &text(&inspected()?["lwk_node"]).as_str(),
        &QUIET,
    )?;
    insula(&["move", NAME, BASE])?;
    try_insula(&["move", NAME, BASE])?.refused(1, &["is on 'base' already"])?;
    insula(&["rm", "--force", QUIET])?;
    Streams::start(address, 1)?.end()?;
    wait_for_line(NAME, "ready")?;
    insula(&["stop", NAME])?;
    assert_equal("its status", &inspected()?["exit_code"], &7.into())?;
    insula(&["rm", NAME])?;
    Ok(fs::remove_dir_all(folder)?)
}

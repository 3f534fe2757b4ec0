//! A server whose core is chosen by what the node's cores have to do.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::Value;

use super::{FILES, MOUNT, NODE, SERVED, there};
use crate::base::Finding;
use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, numbers, text, wait_for,
};

const NAME: &str = "file";
/// Reads a file of the server's for a third of the time.
const READS: &str = "import time
while True:
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        open('/tmp/served/read').read()
    time.sleep(0.06)";
pub(super) const COMPUTES: &str = "while :; do :; done";

pub(super) fn play() -> Result<(), Finding> {
    fs::create_dir_all(MOUNT)?;
    let start = ["servers", "start", NODE, NAME, "--place", "auto", "--"];
    insula(&[&start[..], &[FILES, "memory", "--size", "16M"]].concat())?;
    let first = place_when("it is on one core", |_| true)?;
    insula(&there(SERVED, "echo content > /tmp/served/read"))?;
    let other = (first + 1) % 3;
    let mut client = run_on(other, &["python3", "-c", READS])?;
    place_when("it is where its client is", |core| core == other)?;
    let mut computes = run_on(other, &["sh", "-c", COMPUTES])?;
    place_when("it has left a busy core", |core| core != other)?;
    end(&mut computes)?;
    place_when("it is with its client again", |core| core == other)?;
    end(&mut client)?;
    let listed = insula(&["servers", "ls", NODE])?;
    Finding::unless(listed.contains("(auto)"), || listed.clone())?;
    // By hand: there it stays.
    insula(&["servers", "move", NODE, NAME, "0"])?;
    assert_equal(
        "who chooses",
        &text(&find()?["kept"]["place"]).as_str(),
        &"fixed",
    )?;
    insula(&["servers", "stop", NODE, NAME]).map(drop)
}

/// Starts a program on a core of the node, which has the server's files.
pub(super) fn run_on(core: u32, words: &[&str]) -> Result<Child, Finding> {
    let core = core.to_string();
    let mounted = format!("{MOUNT}={NAME}");
    let exec = [
        "exec", "--mount", &mounted, NODE, "--", "taskset", "-c", &core,
    ];
    let mut command = command(&[&exec[..], words].concat());
    Ok(command.stdin(Stdio::null()).spawn()?)
}

pub(super) fn end(program: &mut Child) -> Result<(), Finding> {
    program.kill()?;
    program.wait()?;
    Ok(())
}

/// Waits until the server is on one core, and that is right. Returns it.
fn place_when(what: &str, is_right: impl Fn(u32) -> bool) -> Result<u32, Finding> {
    wait_for(what, || {
        let cpus = numbers(&find()?["endpoint"]["cpus"]);
        Ok(match cpus[..] {
            [core] if is_right(core) => Some(core),
            _ => None,
        })
    })
}

fn find() -> Result<Value, Finding> {
    Ok(insula_json(&["servers", "ls", "--json", NODE])?[0].clone())
}

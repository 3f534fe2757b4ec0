//! A file server on three cores: names on one, and the content of files on two, by their inodes. Programs have the same
//! of it as of the base's files; its shards move under them; and Linux finds what they have written.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::on_disk::{IMAGE, by_linux, run};
use super::placed::{COMPUTES, end, run_on};
use super::{FILES, NODE, SCRIPTS, SERVED, cached, prints_the_same, there};
use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, numbers, text, try_insula, wait_for,
};
use crate::base::{Context, Finding};

/// Scripts of those that are played on a server without shards that are about content.
const PLAYED: [&str; 2] = ["content", "programs"];
/// Two programs append lines to a file each, read what they have, and open it anew now and then.
const LINES: &str = "cd /tmp/served; for file in one two; do \
                     (for i in $(seq 1 150); do echo line $i >> $file; tail -n 1 $file > last-$file; done) & done; wait";
/// Where the server and its shards are put, and where they are then.
const PLACES: [(&str, &str, [u32; 3]); 4] = [
    ("file.1", "0", [0, 0, 2]),
    ("file", "2,1", [2, 1, 2]),
    ("file", "1", [1, 1, 1]),
    ("file", "0-2", [0, 1, 2]),
];
/// Names of the shards.
const SHARDS: [&str; 2] = ["file.1", "file.2"];
/// Writes to a file for a third of the time.
const WRITES: &str = "import os, time
file = os.open('/tmp/served/own', os.O_CREAT | os.O_WRONLY)
while True:
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        os.pwrite(file, b'line', 0)
    time.sleep(0.06)";
const LIST: &str = "find . -path ./lost+found -o -type f -exec sha256sum {} + | sort";

pub(super) fn play(context: &Context) -> Result<(), Finding> {
    run("mke2fs", &["-q", "-t", "ext4", IMAGE, "48M"])?;
    let start = [
        "servers", "start", NODE, "file", "--cpus", "0-2", "--", FILES,
    ];
    // Fewer pages than the files have that are played with.
    let disk = ["ext4", "--device", IMAGE, "--shards", "2", "--cache", "1M"];
    insula(&[&start[..], &disk].concat())?;
    serves()?;
    are_on([0, 1, 2])?;
    insula(&there(SERVED, "rmdir /tmp/served/lost+found"))?;
    let mut played = SCRIPTS.iter().filter(|(name, _)| PLAYED.contains(name));
    played.try_for_each(prints_the_same)?;
    cached::are_right(context)?;
    insula(&there(SERVED, "rm /tmp/served/read"))?;
    moves(context)?;
    let list = format!("cd /tmp/served && mkdir -p lost+found && {LIST} && sync .");
    let before = insula(&there(SERVED, &list))?;
    insula(&["servers", "restart", NODE, "file"])?;
    serves()?;
    are_on([0, 1, 2])?;
    assert_equal("after a restart", &insula(&there(SERVED, &list))?, &before)?;
    insula(&["servers", "stop", NODE, "file"])?;
    if context.count(0, 1) > 0 {
        // On an emulated machine the base hardly comes to look while a node's cores compute: not in a usual run.
        insula(&[&start[..4], &["--place", "auto", "--", FILES], &disk].concat())?;
        serves()?;
        choose_their_cores()?;
        insula(&there(SERVED, "rm /tmp/served/own && sync /tmp/served"))?;
        insula(&["servers", "stop", NODE, "file"])?;
    }
    run("e2fsck", &["-fn", IMAGE])?;
    assert_equal("what Linux finds", &by_linux(LIST)?, &before)?;
    Ok(fs::remove_file(IMAGE)?)
}

/// The server and its shards, by name.
fn all() -> Result<BTreeMap<String, Value>, Finding> {
    let listed = insula_json(&["servers", "ls", "--json", NODE])?;
    let listed = listed.as_array().into_iter().flatten();
    Ok(listed
        .map(|one| (text(&one["name"]), one["endpoint"].clone()))
        .collect())
}

/// Waits until all of its threads wait for requests.
fn serves() -> Result<(), Finding> {
    wait_for("the shards", || {
        let found = all()?;
        let waits = |name: &str| found.get(name).is_some_and(|one| one["waiting"] == 1);
        Ok((waits("file.1") && waits("file.2")).then_some(()))
    })
}

/// They are threads of one process, a core each.
fn are_on(cores: [u32; 3]) -> Result<(), Finding> {
    let found = all()?;
    let on = |name: &str| numbers(&found[name]["cpus"]);
    let places = ["file", "file.1", "file.2"].map(on);
    assert_equal("their cores", &places, &cores.map(|core| vec![core]))?;
    let is_one =
        |name: &str| found[name]["pid"] == found["file"]["pid"] && found[name]["threads"] == 1;
    Finding::unless(is_one("file.1") && is_one("file.2"), || {
        format!("{found:?}")
    })
}

/// Their cores are chosen: the shard whose file a program writes does not stay on a core where another program computes.
fn choose_their_cores() -> Result<(), Finding> {
    wait_for("each is on one core", || {
        let found = all()?;
        let is_placed = |one: &Value| numbers(&one["cpus"]).len() == 1;
        Ok(found.values().all(is_placed).then_some(()))
    })?;
    let before = all()?;
    let mut writer = run_on(0, &["python3", "-c", WRITES])?;
    let name = wait_for("the shard that has the file", || {
        let found = all()?;
        let received = |all: &BTreeMap<String, Value>, name: &str| all[name]["received"].as_u64();
        let is_busy =
            |name: &&str| received(&found, name) > received(&before, name).map(|one| one + 100);
        Ok(SHARDS.into_iter().find(is_busy))
    })?;
    let core = place_when(name, "it is somewhere", |_| true)?;
    let mut computes = run_on(core, &["sh", "-c", COMPUTES])?;
    place_when(name, "it has left a busy core", |other| other != core)?;
    end(&mut computes)?;
    end(&mut writer)
}

/// Waits until a thread of the server is on a core that is right. Returns it.
fn place_when(name: &str, what: &str, is_right: impl Fn(u32) -> bool) -> Result<u32, Finding> {
    wait_for(what, || {
        let cpus = numbers(&all()?[name]["cpus"]);
        Ok(cpus.first().copied().filter(|&core| is_right(core)))
    })
}

/// They move while programs write and read: nothing is lost, nothing comes twice.
fn moves(context: &Context) -> Result<(), Finding> {
    let to = ["servers", "move", NODE, "file.3", "1"];
    try_insula(&to)?.refused(1, &["no server of that name"])?;
    let mut writer = command(&there(SERVED, LINES))
        .stdin(Stdio::null())
        .spawn()?;
    let mut moved = 0;
    for (name, to, cores) in PLACES.iter().cycle() {
        insula(&["servers", "move", NODE, name, to])?;
        are_on(*cores)?;
        moved += 1;
        // The last place is where it begins when it is started again.
        if moved % PLACES.len() as u64 == 0
            && writer.try_wait()?.is_some()
            && moved >= context.count(4, 100)
        {
            break;
        }
    }
    let status = writer.wait()?;
    Finding::unless(status.success(), || format!("the writers: {status}"))?;
    let expected: String = (1..=150).map(|number| format!("line {number}\n")).collect();
    for file in ["one", "two"] {
        let found = insula(&there(SERVED, &format!("cat /tmp/served/{file}")))?;
        assert_equal(file, &found, &expected)?;
    }
    let found = all()?;
    println!("moved {moved} times: {found:?}");
    let is_asked = |name: &str| found[name]["received"].as_u64() > Some(100);
    Finding::unless(is_asked("file.1") && is_asked("file.2"), || {
        format!("its shards were not asked: {found:?}")
    })
}

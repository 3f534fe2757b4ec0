//! A file server, a block server with a cache, and the server of the disk, each on a core of its own. Those of
//! blocks are killed under a program that writes: it notices nothing. What it has synced is there after the file
//! server's end, too, and for Linux.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::on_disk::{IMAGE, by_linux, run};
use super::{BLOCKS, FILES, NODE, SERVED, there};
use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, try_insula, wait_for,
};
use crate::base::{Context, Finding};

/// The servers, from the disk on, each with its core and program.
const SERVERS: [(&str, &str, &[&str]); 3] = [
    ("disk", "0", &[BLOCKS, "--name", "disk", "--device", IMAGE]),
    (
        "block",
        "1",
        &[
            BLOCKS,
            "--name",
            "block",
            "--device",
            "server:disk",
            "--cache",
            "4M",
        ],
    ),
    ("file", "2", &[FILES, "ext4", "--device", "server:block"]),
];
/// Has the writer end.
const END: &str = "/tmp/writer-ends";
/// Writes files of several sizes, syncs each, and tells its number then.
const WRITE: &str = "cd /tmp/served && number=0; until [ -e /tmp/writer-ends ]; do number=$((number + 1)); \
                     seq 1 $((number % 7 * 1000 + 1)) > file$number && sync file$number && echo $number || exit; done";
/// Lists what there is.
const LIST: &str = "find . -type f -exec sha256sum {} + | sort";

pub(super) fn play(context: &Context) -> Result<(), Finding> {
    run("mke2fs", &["-q", "-t", "ext4", IMAGE, "48M"])?;
    for (name, cpus, program) in SERVERS {
        let start = ["servers", "start", NODE, name, "--cpus", cpus, "--"];
        insula(&[&start[..], program].concat())?;
    }
    has_one_user()?;
    let _ = fs::remove_file(END);
    let mut writer = command(&there(SERVED, WRITE))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = writer.stdout.take();
    let mut lines = BufReader::new(output.ok_or_else(|| Finding::new("it has no output"))?);
    for number in 0..context.count(4, 100) {
        synced(&mut lines)?;
        killed(SERVERS[number as usize % 2].0)?;
    }
    synced(&mut lines)?;
    fs::write(END, "")?;
    let status = writer.wait()?;
    Finding::unless(status.success(), || format!("the writer: {status}"))?;
    fs::remove_file(END)?;
    let list = format!("cd /tmp/served && {LIST}");
    let before = insula(&there(SERVED, &list))?;
    killed("file")?;
    assert_equal("what was synced", &insula(&there(SERVED, &list))?, &before)?;
    for (name, ..) in SERVERS.iter().rev() {
        insula(&["servers", "stop", NODE, name])?;
    }
    run("e2fsck", &["-fn", IMAGE])?;
    assert_equal("what Linux finds", &by_linux(LIST)?, &before)?;
    Ok(fs::remove_file(IMAGE)?)
}

/// What a server of blocks has is one process's.
fn has_one_user() -> Result<(), Finding> {
    let other = ["--name", "other", "ext4", "--device", "server:block"];
    let words = [&["exec", NODE, "--", FILES][..], &other].concat();
    try_insula(&words)?.refused(1, &["server:block", "open it", "EBUSY"])
}

/// Waits until the writer has synced another file, which it had not begun before.
fn synced(lines: &mut BufReader<ChildStdout>) -> Result<(), Finding> {
    for _ in 0..2 {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        Finding::unless(!line.is_empty(), || "the writer has ended".into())?;
    }
    Ok(())
}

/// A server is killed, and another process is there in its place.
fn killed(name: &str) -> Result<(), Finding> {
    let old = pid(name)?.ok_or_else(|| Finding::new(format!("{name} does not run")))?;
    kill(Pid::from_raw(old), Signal::SIGKILL)?;
    wait_for(&format!("another server '{name}'"), || {
        Ok(pid(name)?.filter(|pid| *pid != old).map(drop))
    })
}

fn pid(name: &str) -> Result<Option<i32>, Finding> {
    let listed = insula_json(&["servers", "ls", "--json", NODE])?;
    let mut listed = listed.as_array().into_iter().flatten();
    let server = listed.find(|one| one["name"] == name && one["state"] == "running");
    let pid = server.and_then(|one| one["endpoint"]["pid"].as_u64());
    Ok(pid.and_then(|pid| i32::try_from(pid).ok()))
}

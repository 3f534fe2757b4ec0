//! Failures in the middle of a move: the container goes on where it was, with all connections, and the
//! target has nothing of it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::streams::Streams;
use super::{NAME, has_none, inspected, runs_on};
use crate::base::support::insula_command::{
    Answer, assert_equal, command, insula, text, try_insula, wait_for,
};
use crate::base::{Context, Finding};

/// Source and target.
const SOURCE: &str = "6.1";
const TARGET: &str = "6.12";
/// Move that is to fail.
const MOVE: [&str; 3] = ["move", NAME, TARGET];
/// Says that it waits, and freezes the next restore in a node as soon as it begins. Waits in one process: an
/// emulator would be busy with a program that is started a hundred times a second.
const FREEZE_RESTORE: &str = r#"
import sys, time
print("waiting", flush=True)
while True:
    try:
        open(f"/sys/fs/cgroup/insula/{sys.argv[1]}/cgroup.freeze", "w").write("1")
        break
    except FileNotFoundError:
        time.sleep(0.01)
"#;
/// What who waits says.
const WAITING: &[u8; 8] = b"waiting\n";
/// Address of the base at which a stopped agent is told to go on.
const RELEASE: &str = "10.78.0.1:4000";
/// The container's record on the base.
const RECORD: &str = "/run/insula/containers/shop.json";
/// Stops the server of the node's agent until the base tells it to go on.
const STOP_AGENT: &str = r#"
import os, signal, socket
server = os.getppid()
os.kill(server, signal.SIGSTOP)
socket.create_connection(("10.78.0.1", 4000)).recv(1)
os.kill(server, signal.SIGCONT)
"#;
const CONTINUE_RESTORE: &str = "echo 0 > /sys/fs/cgroup/insula/shop/cgroup.freeze";

pub(super) fn play(address: &str, context: &Context, streams: &Streams) -> Result<(), Finding> {
    let release = context.release(SOURCE)?;
    let stays = || {
        runs_on(address, SOURCE, &release, streams)?;
        has_none(TARGET)
    };
    command_killed_late(address, context, streams)?;
    if context.select(false, true) {
        no_room()?;
        stays().map_err(|error| error.when("without room at the target"))?;
        command_killed()?;
        stays().map_err(|error| error.when("after the command was killed"))?;
        // `upgrade` kills a target in every run.
        target_killed()?;
        stays().map_err(|error| error.when("after the target was killed"))?;
    }
    no_criu()?;
    stays().map_err(|error| error.when("without CRIU at the target"))
}

fn on_target(script: &str) -> Result<String, Finding> {
    insula(&["exec", TARGET, "--", "sh", "-c", script])
}

/// The target has no memory left for its files.
fn no_room() -> Result<(), Finding> {
    on_target("! dd if=/dev/zero of=/run/full bs=1M 2>/dev/null")?;
    let answer = try_insula(&MOVE)?;
    on_target("rm /run/full")?;
    answer.refused(1, &["No space left", "it goes on where it was"])
}

/// The words that have a container's next restore in a node frozen as soon as it begins.
pub(in super::super) fn freeze_restore<'a>(node: &'a str, container: &'a str) -> [&'a str; 7] {
    let script = FREEZE_RESTORE;
    ["exec", node, "--", "python3", "-c", script, container]
}

/// The same in the background: it waits when this returns.
pub(in super::super) fn begin_freezing(node: &str, container: &str) -> Result<Child, Finding> {
    begin_waiting(&freeze_restore(node, container))
}

/// Runs a command in the background that waits for something when this returns, as it has said.
pub(in super::super) fn begin_waiting(words: &[&str]) -> Result<Child, Finding> {
    let mut waiting = piped(command(words))?;
    let output = waiting.stdout.as_mut();
    let output = output.ok_or_else(|| Finding::new("its output is not piped"))?;
    let mut said = [0; WAITING.len()];
    output.read_exact(&mut said)?;
    assert_equal("what it says", &&said, &WAITING)?;
    Ok(waiting)
}

/// Begins a move, whose restore is frozen when it has begun.
fn begin_frozen() -> Result<Child, Finding> {
    let mut freezing = begin_freezing(TARGET, NAME)?;
    let moving = piped(command(&MOVE))?;
    wait_for("the restore to begin", || Ok(freezing.try_wait()?))?;
    Ok(moving)
}

pub(in super::super) fn piped(mut command: Command) -> Result<Child, Finding> {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command.spawn()?)
}

/// The command is killed while the target restores.
fn command_killed() -> Result<(), Finding> {
    let mut moving = begin_frozen()?;
    kill(Pid::from_raw(moving.id().cast_signed()), Signal::SIGKILL)?;
    moving.wait()?;
    // It goes on before the target knows.
    on_target(CONTINUE_RESTORE).map(drop)
}

/// The command is killed when the target may have been told to keep the container, and before it can
/// have been told to go on: the source cannot answer. It goes on in one of them, and in one only.
fn command_killed_late(address: &str, context: &Context, streams: &Streams) -> Result<(), Finding> {
    let mut moving = begin_frozen()?;
    let listener = TcpListener::bind(RELEASE)?;
    let source = command(&["exec", SOURCE, "--", "python3", "-c", STOP_AGENT]);
    let mut source = piped(source)?;
    let (mut release, _) = listener.accept()?;
    on_target(CONTINUE_RESTORE)?;
    wait_for("the move to be recorded", || {
        Finding::unless(moving.try_wait()?.is_none(), || "the move has ended".into())?;
        let record = fs::read_to_string(RECORD)?;
        Ok(record.contains("moving_to").then_some(()))
    })?;
    kill(Pid::from_raw(moving.id().cast_signed()), Signal::SIGKILL)?;
    moving.wait()?;
    release.write_all(b"x")?;
    source.wait()?;
    let node = text(&inspected()?["node"]);
    println!("after the command was killed late, it is on {node}");
    let goes_on = runs_on(address, &node, &context.release(&node)?, streams);
    goes_on.map_err(|error| error.when("after the command was killed late"))?;
    match node.as_str() {
        SOURCE => Ok(()),
        _ => insula(&["move", NAME, SOURCE]).map(drop),
    }
}

/// The target is killed while it restores.
fn target_killed() -> Result<(), Finding> {
    let moving = begin_frozen()?;
    insula(&["kill", TARGET])?;
    let output: Output = moving.wait_with_output()?;
    Answer::new(&MOVE, &output).refused(1, &["it goes on where it was"])?;
    insula(&["restart", TARGET]).map(drop)
}

/// The target has no CRIU, which is told before anything is done.
fn no_criu() -> Result<(), Finding> {
    on_target("umount /run/insula/criu")?;
    let missing = ["lacks CRIU", "it was left as it is"];
    try_insula(&["move", "--check", NAME, TARGET])?.refused(1, &missing)?;
    try_insula(&MOVE)?.refused(1, &missing)
}

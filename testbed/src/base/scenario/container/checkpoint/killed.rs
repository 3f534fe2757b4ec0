//! The command is killed, or the server of the node's agent: while CRIU restores, nothing is left in the node; while it
//! dumps, the container goes on.

use std::net::TcpStream;
use std::path::Path;

use super::super::move_linux::failures::{begin_freezing, begin_waiting, piped};
use super::super::move_linux::state::{NAME, check};
use super::{NEW, has_nothing, is_nowhere, on, place};
use crate::base::Finding;
use crate::base::support::insula_command::{
    Answer, command, insula, insula_json, text, try_insula, wait_for,
};

/// What would be restored.
const CUT: &str = "cut";
/// Has its restore, which was frozen, go on.
const CONTINUE: &str = "echo 0 > /sys/fs/cgroup/insula/cut/cgroup.freeze";

/// Kills the server of the node's agent.
const KILL_AGENT: &str = "kill -KILL $PPID";
/// The same as soon as a container is frozen, to be dumped.
const KILL_AGENT_LATER: &str = r#"
import os, signal, sys, time
server = os.getppid()
print("waiting", flush=True)
while open(f"/sys/fs/cgroup/insula/{sys.argv[1]}/cgroup.freeze").read() != "1\n":
    time.sleep(0.002)
os.kill(server, signal.SIGKILL)
"#;

pub(super) fn play(ours: &str, checks: &mut TcpStream) -> Result<(), Finding> {
    restoring(ours)?;
    check(checks)?;
    dumping(checks)?;
    agent_restoring(ours)?;
    agent_dumping(checks)
}

fn restoring(ours: &str) -> Result<(), Finding> {
    let mut freezing = begin_freezing(NEW, CUT)?;
    let restore = ["restore", NEW, "--import", ours, "--name", CUT];
    let mut restoring = piped(command(&restore))?;
    wait_for("the restore to begin", || Ok(freezing.try_wait()?))?;
    restoring.kill()?;
    restoring.wait()?;
    on(NEW, CONTINUE)?;
    has_nothing(NEW, CUT)?;
    // Its name is taken until it is removed.
    try_insula(&restore)?.refused(1, &["that of a container"])?;
    insula(&["rm", "--force", CUT])?;
    is_nowhere(NEW, CUT)
}

fn dumping(checks: &mut TcpStream) -> Result<(), Finding> {
    let folder = place(CUT);
    let mut dumping = piped(command(&["checkpoint", NAME, "--export", &folder]))?;
    wait_for("the checkpoint to begin", || {
        Ok(Path::new(&folder).exists().then_some(()))
    })?;
    dumping.kill()?;
    dumping.wait()?;
    check(checks)?;
    let restore = ["restore", NEW, "--import", &folder, "--name", CUT];
    try_insula(&restore)?.refused(1, &["nothing was touched"])?;
    is_nowhere(NEW, CUT)
}

fn agent_restoring(ours: &str) -> Result<(), Finding> {
    let mut freezing = begin_freezing(NEW, CUT)?;
    let restoring = piped(command(&["restore", NEW, "--import", ours, "--name", CUT]))?;
    wait_for("the restore to begin", || Ok(freezing.try_wait()?))?;
    // The program that kills its own server ends with it.
    let _ = try_insula(&["exec", NEW, "--", "sh", "-c", KILL_AGENT])?;
    let output = restoring.wait_with_output()?;
    Answer::new(&["restore"], &output).refused(1, &[])?;
    // The next server may have removed it meanwhile.
    on(NEW, &format!("{{ {CONTINUE}; }} 2>/dev/null || true"))?;
    has_nothing(NEW, CUT)?;
    // It may be known that it failed.
    let _ = try_insula(&["rm", "--force", CUT])?;
    is_nowhere(NEW, CUT)
}

fn agent_dumping(checks: &mut TcpStream) -> Result<(), Finding> {
    let node = text(&insula_json(&["inspect", NAME])?[0]["node"]);
    let words = ["exec", &node, "--", "python3", "-c", KILL_AGENT_LATER, NAME];
    let mut killer = begin_waiting(&words)?;
    let refused = try_insula(&["checkpoint", NAME, "--export", &place(CUT)])?;
    refused.refused(1, &["the container goes on, and nothing was kept"])?;
    killer.wait()?;
    check(checks)
}

//! The command is killed: while CRIU restores, nothing is left in the node; while it dumps, the container goes on.

use std::net::TcpStream;
use std::path::Path;

use super::super::move_linux::failures::{begin_freezing, piped};
use super::super::move_linux::state::{NAME, check};
use super::{NEW, has_nothing, is_nowhere, on, place};
use crate::base::Finding;
use crate::base::support::insula_command::{command, insula, try_insula, wait_for};

/// What would be restored.
const CUT: &str = "cut";
/// Has its restore, which was frozen, go on.
const CONTINUE: &str = "echo 0 > /sys/fs/cgroup/insula/cut/cgroup.freeze";

pub(super) fn play(ours: &str, checks: &mut TcpStream) -> Result<(), Finding> {
    restoring(ours)?;
    check(checks)?;
    dumping(checks)
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

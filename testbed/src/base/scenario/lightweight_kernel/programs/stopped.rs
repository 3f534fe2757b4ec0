//! Stopped programs leave the node's cores to others, and continue where they were.

use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::alike::same;
use super::{NODE, PROBE, on_node, output};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, command, insula};

/// Number of stopped programs: as many as the node has cores.
const STOPPED: usize = 3;
const STOP: &str = "kill -STOP $$; echo on; exit 3";

/// A computing program is stopped by SIGSTOP, which no proxy can catch. Its proxy sleeps after few
/// polls: on emulated cores polling would take minutes.
pub(super) fn computing_stops() -> Result<(), Finding> {
    let words = [PROBE, "stopped"];
    let on_node = [&["exec", "--polls", "0", NODE, "--"], &words[..]].concat();
    let found = output(&mut command(&on_node), "")?;
    let wanted = output(Command::new(words[0]).args(&words[1..]), "")?;
    same(&words, &found, &wanted)
}

pub(super) fn cores_are_free() -> Result<(), Finding> {
    let begin = || {
        on_node(&["/bin/busybox", "sh", "-c", STOP])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
    };
    let all: Vec<Child> = std::iter::repeat_with(begin)
        .take(STOPPED)
        .collect::<Result<_, _>>()?;
    let pid = |program: &Child| Pid::from_raw(program.id().cast_signed());
    for program in &all {
        let found = waitpid(pid(program), Some(WaitPidFlag::WUNTRACED))?;
        let wanted = WaitStatus::Stopped(pid(program), Signal::SIGSTOP);
        assert_equal("a program that stops itself", &found, &wanted)?;
    }
    insula(&["exec", NODE, "--", "/bin/true"])?;
    for program in all {
        kill(pid(&program), Signal::SIGCONT)?;
        let output = program.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_equal(
            "its end after SIGCONT",
            &(text.as_str(), output.status.code()),
            &("on\n", Some(3)),
        )?;
    }
    Ok(())
}

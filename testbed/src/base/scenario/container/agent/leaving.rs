//! Detaching from a program that does not end on request.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};

use super::{pid, script};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, command, wait_for};

/// Prints `ready`, then ignores SIGINT and all input.
const IGNORES_INTERRUPTS: &str = "trap '' INT; echo ready; exec sleep 100000";
/// Exit status of `insula exec` if it does not know how the program has ended.
const FAILED: i32 = 125;
/// Runs the rest of its arguments on a terminal, types ctrl-p ctrl-q once the program has printed
/// `ready`, and reports the output and the status. It is killed if they do not detach.
const ON_A_TERMINAL: &str = "\
import os, pty, signal, sys
signal.alarm(60)
said = b''
def read(fd):
    global said
    data = os.read(fd, 1024)
    if b'ready' in said + data and b'ready' not in said:
        os.write(fd, b'\\x10\\x11')
    said += data
    return data
status = pty.spawn(sys.argv[1:], read)
sys.exit(os.waitstatus_to_exitcode(status))
";

pub(super) fn play(node: &str) -> Result<(), Finding> {
    by_interrupts(node)?;
    by_keys(node)
}

fn start(node: &str) -> Result<Child, Finding> {
    let mut exec: Command = command(&["exec", node, "--", "sh", "-c", IGNORES_INTERRUPTS]);
    exec.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut exec = exec.spawn()?;
    let mut line = String::new();
    if let Some(output) = &mut exec.stdout {
        BufReader::new(output).read_line(&mut line)?;
    }
    assert_equal("its first words", &line.as_str(), &"ready\n")?;
    Ok(exec)
}

/// The first interrupt is not enough. How many are needed depends on how many the command receives
/// separately.
fn by_interrupts(node: &str) -> Result<(), Finding> {
    let mut exec = start(node)?;
    let id = pid(&exec)?;
    kill(id, Signal::SIGINT)?;
    script(node, &[], "true")?;
    Finding::unless(exec.try_wait()?.is_none(), || {
        "it was left at the first interrupt".into()
    })?;
    let status = wait_for("the command to leave its program", || {
        kill(id, Signal::SIGINT)?;
        Ok(exec.try_wait()?)
    })?;
    assert_equal("its status", &status.code(), &Some(FAILED))?;
    let mut printed = String::new();
    if let Some(errors) = &mut exec.stderr {
        errors.read_to_string(&mut printed)?;
    }
    Finding::unless(
        printed.contains(node) && printed.contains("detached from"),
        || format!("it printed {printed:?}"),
    )
}

fn by_keys(node: &str) -> Result<(), Finding> {
    let exec = command(&["exec", "-it", node, "--", "sh", "-c", IGNORES_INTERRUPTS]);
    let words = std::iter::once(exec.get_program()).chain(exec.get_args());
    let ended = Command::new("python3")
        .args(["-c", ON_A_TERMINAL])
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    let printed = String::from_utf8_lossy(&ended.stdout);
    let status = ended.status.code();
    assert_equal("its status after the keys", &status, &Some(FAILED))?;
    Finding::unless(printed.contains("detached from"), || {
        format!("it printed {printed:?}")
    })
}

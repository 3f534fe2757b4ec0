//! A program on a terminal: it is detached from by keys, and goes on.

use std::process::{Command, Stdio};

use super::IMAGE;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula};

const NODE: &str = "shell";
/// Runs the rest of its arguments on a terminal, ends lines until there is a prompt, types its first argument
/// up to `|`, and the rest when that has printed `done`, and reports output and status. It is killed if they do not end.
const ON_A_TERMINAL: &str = "\
import os, pty, select, signal, sys
signal.alarm(80)
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
said, parts, marks = b'', sys.argv[1].split('|'), [b'# ', b'done']
while True:
    if not select.select([terminal], [], [], 0.5)[0]:
        if len(marks) == 2:
            os.write(terminal, b'\\r')
        continue
    try:
        data = os.read(terminal, 1024)
    except OSError:
        break
    said += data
    if parts and marks[0] in said:
        marks.pop(0)
        os.write(terminal, parts.pop(0).encode().decode('unicode_escape').encode())
os.write(1, said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

pub(super) fn is_detached_from() -> Result<(), Finding> {
    let node = ["run", "--image", IMAGE, "--name", NODE, "--memory", "128M"];
    insula(&[&node[..], &["-it", "--", "/bin/sh"]].concat())?;
    let typed = "kept=yes; echo do''ne\\r|\\x10\\x11";
    assert_equal("the status after the keys", &attach(typed)?.0, &Some(0))?;
    let (status, output) = attach("echo it is $kept; exit 3\\r")?;
    assert_equal("the program's status", &status, &Some(3))?;
    Finding::unless(output.contains("it is yes"), || {
        format!("it printed {output:?}")
    })?;
    insula(&["rm", "--force", NODE]).map(drop)
}

/// Attaches on a terminal, and types that. Returns the status and what was printed.
fn attach(typed: &str) -> Result<(Option<i32>, String), Finding> {
    let words = [ON_A_TERMINAL, typed, "insula", "attach", NODE];
    let ended = Command::new("python3")
        .arg("-c")
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    let output = String::from_utf8_lossy(&ended.stdout).into_owned();
    Ok((ended.status.code(), output))
}

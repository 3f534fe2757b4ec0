//! Ignored and blocked signals that a program inherits: it sees them, and can change them.

use std::process::Command;

use super::{NODE, output};
use crate::base::Finding;
use crate::base::support::insula_command::assert_equal;

const PYTHON: &str = "/usr/bin/python3";
/// Prints what it inherited; then is sent a signal that was ignored, which ends it at last: what it
/// has not written by then is lost.
const CHANGES_DISPOSITION: &str = r#"
import os, signal
def say(*words):
    print(*words, flush=True)
say(signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN, signal.pthread_sigmask(signal.SIG_BLOCK, []))
signal.signal(signal.SIGQUIT, lambda *_: say("heard"))
parent = os.getpid()
if os.fork() == 0:
    os.kill(parent, signal.SIGQUIT)
    os._exit(0)
os.wait()
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
os.kill(parent, signal.SIGQUIT)
"#;
/// Starts another with a signal ignored, as shells do for background programs, and one blocked.
const STARTS: &str = r#"
import os, signal, sys
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.execvp(sys.argv[1], sys.argv[1:])
"#;

pub(super) fn can_be_changed() -> Result<(), Finding> {
    let program = [PYTHON, "-c", CHANGES_DISPOSITION];
    let begin = |words: &[&str]| {
        let mut command = Command::new(PYTHON);
        command.args(["-c", STARTS]).args(words);
        let ended = output(&mut command, "")?;
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        Ok::<_, Finding>((text, ended.status.to_string()))
    };
    let wanted = begin(&program)?;
    let said = wanted.0.starts_with("True") && wanted.0.ends_with("heard\n");
    Finding::unless(said, || format!("the program on Linux: {wanted:?}"))?;
    let on_node = [&["insula", "exec", NODE, "--"], &program[..]].concat();
    assert_equal(
        "a program that inherits ignored signals",
        &begin(&on_node)?,
        &wanted,
    )
}

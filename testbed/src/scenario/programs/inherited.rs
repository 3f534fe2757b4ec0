//! Signals that a program ignores or blocks from its beginning: it knows of that, and can change it.

use std::process::Command;

use super::super::Finding;
use super::super::insula_command::assert_equal;
use super::{NODE, output};

const PYTHON: &str = "/usr/bin/python3";
/// Says what it begins with; then somebody sends it what was ignored.
const CHANGES_ITS_MIND: &str = r#"
import os, signal
print(signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN, signal.pthread_sigmask(signal.SIG_BLOCK, []))
signal.signal(signal.SIGQUIT, lambda *_: print("heard"))
parent = os.getpid()
if os.fork() == 0:
    os.kill(parent, signal.SIGQUIT)
    os._exit(0)
os.wait()
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
os.kill(parent, signal.SIGQUIT)
"#;
/// Begins another with a signal ignored, as shells begin what is to run in the background, and one
/// blocked.
const BEGINS: &str = r#"
import os, signal, sys
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.execvp(sys.argv[1], sys.argv[1:])
"#;

pub(super) fn can_be_changed() -> Result<(), Finding> {
    let program = [PYTHON, "-c", CHANGES_ITS_MIND];
    let begin = |words: &[&str]| {
        let mut command = Command::new(PYTHON);
        command.args(["-c", BEGINS]).args(words);
        let ended = output(&mut command, "")?;
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        Ok::<_, Finding>((text, ended.status.to_string()))
    };
    let wanted = begin(&program)?;
    let on_node = [&["insula", "exec", NODE, "--"], &program[..]].concat();
    assert_equal(
        "a program that begins with signals ignored",
        &begin(&on_node)?,
        &wanted,
    )
}

//! Commands on a terminal, at which somebody types.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::base::Finding;

/// Runs its arguments from the second on, on a terminal. Its first one are pairs of what is awaited, and what is typed then. As
/// long as the first is not there, lines are ended. It reports output and status, and is killed if the program does not end.
const SCRIPT: &str = "\
import fcntl, json, os, pty, select, signal, struct, sys, termios
signal.alarm(240)
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
said, pairs = b'', json.loads(sys.argv[1])
count = len(pairs)
while True:
    if not select.select([terminal], [], [], 0.5)[0]:
        if count and len(pairs) == count:
            os.write(terminal, b'\\r')
        continue
    try:
        data = os.read(terminal, 1024)
    except OSError:
        break
    said += data
    if pairs and pairs[0][0].encode() in said:
        os.write(terminal, pairs.pop(0)[1].encode())
os.write(1, said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

/// Runs a program on a terminal. `typed` are pairs of what is awaited in its output, and what is typed then. Returns its status and
/// all that was printed.
pub(crate) fn on_terminal(
    words: &[&str],
    typed: &[(&str, &str)],
) -> Result<(Option<i32>, String), Finding> {
    let ended = Command::new("python3")
        .args(["-c", SCRIPT, &json!(typed).to_string()])
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    let output = String::from_utf8_lossy(&ended.stdout).into_owned();
    Ok((ended.status.code(), output))
}

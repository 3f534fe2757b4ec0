//! QEMU's monitor (QMP), on its standard input: "QEMU QMP Reference Manual", migration.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// QEMU's arguments for a monitor on its standard input.
pub(super) const ARGUMENTS: [&str; 4] = [
    "-chardev",
    "socket,id=monitor,fd=0",
    "-mon",
    "chardev=monitor,mode=control",
];
/// Time limit for the state to be written, and interval of asking for it.
const LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Our end of a monitor.
pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Both ends: ours, and that for QEMU's standard input.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(LIMIT))?;
        Ok((Self(BufReader::new(ours)), theirs.into()))
    }

    /// Has QEMU write the state of its running machine to a file. The machine stops then.
    ///
    /// # Errors
    /// When it fails, or takes too long.
    pub fn save(&mut self, file: &Path) -> io::Result<()> {
        let uri = format!("exec:cat > {}", file.display());
        self.execute("qmp_capabilities", &json!({}))?;
        self.execute("migrate", &json!({ "uri": uri }))?;
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let answer = self.execute("query-migrate", &json!({}))?;
            match answer["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => return Err(io::Error::other(answer.to_string())),
                _ => thread::sleep(POLL_INTERVAL),
            }
        }
        Err(io::Error::other("QEMU has not written the state in time"))
    }

    /// Executes a command. Returns its answer.
    fn execute(&mut self, name: &str, arguments: &Value) -> io::Result<Value> {
        let request = json!({ "execute": name, "arguments": arguments });
        writeln!(self.0.get_mut(), "{request}")?;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut message: Value = serde_json::from_str(&line)?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                return Err(io::Error::other(format!("{name}: {error}")));
            }
            // The greeting, or an event.
        }
    }
}

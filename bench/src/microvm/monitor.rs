//! QEMU's monitor (QMP), on a socket: "QEMU QMP Reference Manual", migration.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// QEMU's arguments for a monitor on [`SOCKET`].
pub(super) const ARGUMENTS: [&str; 2] = ["-qmp", "unix:/run/microvm.monitor,server=on,wait=off"];
const SOCKET: &str = "/run/microvm.monitor";
/// Time limit for QEMU to start, and for the state to be written, and interval of looking.
const LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The monitor of a machine.
pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Connects to that of a machine that is being started.
    pub(super) fn connect() -> io::Result<Self> {
        let began = Instant::now();
        let stream = loop {
            match UnixStream::connect(SOCKET) {
                Err(_) if began.elapsed() < LIMIT => thread::sleep(POLL_INTERVAL),
                connected => break connected?,
            }
        };
        stream.set_read_timeout(Some(LIMIT))?;
        fs::remove_file(SOCKET)?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Has QEMU write the state of its running machine to a file. The machine stops then.
    ///
    /// # Errors
    /// When it fails, or takes too long.
    pub fn save(&mut self, file: &Path) -> io::Result<()> {
        let uri = format!("exec:cat > {}", file.display());
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

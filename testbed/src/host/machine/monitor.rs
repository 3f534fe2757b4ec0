//! QEMU's monitor (QMP): why the machine stopped, and where each of its cores was executing.
//!
//! A machine that is switched off or resets itself is stopped but not ended, so that its cores can
//! still be inspected. Follows QEMU's "Machine Protocol Specification" and "QMP Reference Manual"
//! (`SHUTDOWN`, `human-monitor-command`).

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use serde_json::{Value, json};

/// QEMU's arguments for a monitor on its standard input, which is then the other end of
/// [`Monitor::pair`].
pub(super) const ARGUMENTS: [&str; 6] = [
    "-chardev",
    "socket,id=monitor,fd=0",
    "-mon",
    "chardev=monitor,mode=control",
    "-action",
    "shutdown=pause",
];

/// MCi_STATUS: valid, uncorrected.
const STATUS_UNCORRECTED: u64 = 1 << 63 | 1 << 61;
/// MCG_STATUS: machine check in progress, restart IP valid.
const STATUS_RESTARTABLE: u64 = 1 << 2 | 1 << 0;

/// Message of the monitor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The machine has stopped. The reason is in QEMU's words: `guest-shutdown`, `guest-reset`.
    Stopped(String),
    /// Answer to [`Monitor::ask_for_cores`], or to [`Monitor::check`]: empty on success of the
    /// latter.
    Answer(String),
}

/// Registers of all cores, in QEMU's format.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Cores(pub(super) String);

/// Our end of the monitor.
pub(super) struct Monitor(UnixStream);

impl Monitor {
    /// Both ends: ours, and that for QEMU's standard input.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut monitor = Self(ours);
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok((monitor, theirs.into()))
    }

    /// Passes each message to `take`, in a thread that lasts as long as QEMU.
    pub(super) fn listen(&self, take: impl Fn(Message) + Send + 'static) -> io::Result<()> {
        let lines = BufReader::new(self.0.try_clone()?).lines();
        thread::spawn(move || {
            let lines = lines.map_while(Result::ok);
            lines
                .filter_map(|line| Message::parse(&line))
                .for_each(take);
        });
        Ok(())
    }

    /// Stops the machine, if it runs, and requests its cores' registers.
    pub(super) fn ask_for_cores(&mut self) -> io::Result<()> {
        self.execute("stop", &json!({}))?;
        let words = json!({ "command-line": "info registers -a" });
        self.execute("human-monitor-command", &words)
    }

    /// Injects a machine check into a core: an error of the hardware that concerns other cores,
    /// since all cores that share the failed part are notified. Uncorrected, not of this core's
    /// making, restartable.
    pub(super) fn check(&mut self, core: u32) -> io::Result<()> {
        let line = format!("mce {core} 1 {STATUS_UNCORRECTED:#x} {STATUS_RESTARTABLE:#x} 0 0");
        self.execute("human-monitor-command", &json!({ "command-line": line }))
    }

    /// Ends QEMU.
    pub(super) fn quit(&mut self) -> io::Result<()> {
        self.execute("quit", &json!({}))
    }

    fn execute(&mut self, name: &str, arguments: &Value) -> io::Result<()> {
        let request = json!({ "execute": name, "arguments": arguments });
        writeln!(self.0, "{request}")
    }
}

impl Message {
    /// None for the greeting, for empty answers and for other events.
    fn parse(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        if let Some(text) = message["return"].as_str() {
            return Some(Self::Answer(text.to_owned()));
        }
        let reason = message["data"]["reason"].as_str()?;
        (message["event"] == "SHUTDOWN").then(|| Self::Stopped(reason.to_owned()))
    }
}

/// Writes where each core was, in one line.
impl fmt::Display for Cores {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cores = self.0.split("CPU#").skip(1).peekable();
        if cores.peek().is_none() {
            return write!(formatter, "no core's registers could be read");
        }
        for (number, core) in cores.enumerate() {
            let register = |names: &[&str]| {
                let mut words = core.split_whitespace();
                let value = words.find_map(|word| names.iter().find_map(|n| word.strip_prefix(n)));
                value.unwrap_or("?").to_owned()
            };
            let separator = if number == 0 { "" } else { ", " };
            let halted = if register(&["HLT="]) == "1" {
                " halted"
            } else {
                ""
            };
            let (rip, cr3) = (register(&["RIP=", "EIP="]), register(&["CR3="]));
            write!(
                formatter,
                "{separator}core {number}{halted} at {rip} (cr3 {cr3})"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shutdown_events_are_stops() {
        let stopped = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#;
        assert_eq!(
            Message::parse(stopped),
            Some(Message::Stopped("guest-reset".to_owned()))
        );
        for other in [
            r#"{"QMP": {"version": {}, "capabilities": []}}"#,
            r#"{"return": {}}"#,
            r#"{"event": "RESET", "data": {"guest": true, "reason": "guest-reset"}}"#,
            r#"{"event": "STOP"}"#,
            "not JSON",
        ] {
            assert_eq!(Message::parse(other), None, "{other}");
        }
    }

    #[test]
    fn cores_are_written_in_one_line() {
        let answer = concat!(
            r#"{"return": "\r\nCPU#0\r\nRAX=0 RBX=1\r\nRIP=ffffffff81000010 RFL=00000246 [---Z-P-] "#,
            r#"CPL=0 HLT=1\r\nCR0=80050033 CR2=0 CR3=0000000001234000 CR4=0\r\n\r\nCPU#1\r\n"#,
            r#"EIP=00000100 EFL=2 HLT=0\r\nCR0=10 CR2=0 CR3=0 CR4=0\r\n"}"#
        );
        let Some(Message::Answer(cores)) = Message::parse(answer) else {
            panic!("no answer");
        };
        assert_eq!(
            Cores(cores).to_string(),
            "core 0 halted at ffffffff81000010 (cr3 0000000001234000), core 1 at 00000100 (cr3 0)"
        );
    }

    #[test]
    fn cores_that_are_missing_are_not_made_up() {
        assert_eq!(
            Cores::default().to_string(),
            "no core's registers could be read"
        );
    }
}

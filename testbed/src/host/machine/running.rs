//! A running QEMU: its output and its monitor.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::boot_watch::BootWatch;
use super::host_request::{HostRequest, HostRequestParser};
use super::monitor::{Cores, Message, Monitor};

/// Interval at which a booting machine is checked.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for an answer of the monitor, and for QEMU's end when asked for.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// QEMU's reason of a machine that was switched off.
const SWITCHED_OFF: &str = "guest-shutdown";

/// QEMU, with its output and events.
pub(super) struct Running {
    child: Child,
    monitor: Monitor,
    events: mpsc::Receiver<Event>,
    reader: JoinHandle<Vec<u8>>,
}

enum Event {
    /// A message of its monitor.
    Monitor(Message),
    /// The task requests an event that only QEMU can cause.
    Request(HostRequest),
    /// QEMU has ended: no more output follows.
    Gone,
}

/// Why waiting for a machine ended.
pub(super) enum WaitEnd {
    /// QEMU has ended.
    Gone,
    /// The machine was switched off.
    SwitchedOff,
    /// It stopped by itself in another way, in QEMU's words.
    Stopped(String),
    /// The time limit was reached.
    Limit,
    /// It hung before the task had started.
    Boot,
}

impl WaitEnd {
    /// Whether there is nothing to investigate.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self, Self::Gone | Self::SwitchedOff)
    }
}

impl Running {
    /// Starts QEMU. With `show`, what the task prints is copied to this process's output, too.
    pub(super) fn start(mut command: Command, show: bool) -> io::Result<Self> {
        let (monitor, standard_input) = Monitor::pair()?;
        command.stdin(standard_input).stdout(Stdio::piped());
        let (sender, events) = mpsc::channel();
        let gone = sender.clone();
        monitor.listen(move |message| drop(sender.send(Event::Monitor(message))))?;
        // The last step that can fail, so that nothing is left running.
        let mut child = command.spawn()?;
        let pipe = child.stdout.take();
        let reader = thread::spawn(move || {
            let mut requests = HostRequestParser::default();
            let watch = |piece: &[u8]| {
                for request in requests.read(piece) {
                    let _ = gone.send(Event::Request(request));
                }
            };
            let output = pipe.map_or_else(Vec::new, |pipe| read_all(pipe, show, watch));
            // Nobody receives any more after the time limit.
            let _ = gone.send(Event::Gone);
            output
        });
        Ok(Self {
            child,
            monitor,
            events,
            reader,
        })
    }

    /// Waits until the machine has stopped, up to `limit`.
    pub(super) fn wait(&mut self, boot: &mut BootWatch, limit: Duration) -> WaitEnd {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left.min(WATCH_INTERVAL)) {
                Ok(Event::Gone) => return WaitEnd::Gone,
                Ok(Event::Monitor(Message::Stopped(reason))) if reason == SWITCHED_OFF => {
                    return WaitEnd::SwitchedOff;
                }
                Ok(Event::Monitor(Message::Stopped(reason))) => return WaitEnd::Stopped(reason),
                Ok(Event::Monitor(Message::Answer(refusal))) if !refusal.is_empty() => {
                    return WaitEnd::Stopped(refusal);
                }
                Ok(Event::Request(HostRequest::MachineCheck { core })) => {
                    // If QEMU has ended, that is received as well.
                    let _ = self.monitor.check(core);
                }
                _ if left.is_zero() => return WaitEnd::Limit,
                _ if boot.hangs() => return WaitEnd::Boot,
                _ => {}
            }
        }
    }

    /// Stops the machine and returns its cores' registers: none when QEMU does not answer.
    pub(super) fn cores(&mut self) -> Cores {
        if self.monitor.ask_for_cores().is_err() {
            return Cores::default();
        }
        while let Ok(Event::Monitor(message)) = self.events.recv_timeout(ANSWER_LIMIT) {
            if let Message::Answer(text) = message {
                return Cores(text);
            }
        }
        Cores::default()
    }

    /// Ends QEMU. Returns the output, and QEMU's status.
    pub(super) fn end(mut self) -> io::Result<(Vec<u8>, ExitStatus)> {
        let asked = self.monitor.quit().is_ok();
        if !asked || !self.waits_for_end() {
            // It has ended already, or does not react.
            let _ = self.child.kill();
        }
        let status = self.child.wait()?;
        Ok((self.reader.join().unwrap_or_default(), status))
    }

    fn waits_for_end(&self) -> bool {
        let deadline = Instant::now() + ANSWER_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Event::Gone) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Reads to the end. Keeps what was read before an error.
fn read_all(mut pipe: impl Read, show: bool, mut watch: impl FnMut(&[u8])) -> Vec<u8> {
    let (mut output, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => return output,
            Ok(size) => {
                output.extend_from_slice(&piece[..size]);
                watch(&piece[..size]);
                if show {
                    // A failed copy of the output is no reason to stop the machine.
                    let mut out = io::stdout().lock();
                    let _ = out.write_all(&piece[..size]).and_then(|()| out.flush());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return output,
        }
    }
}

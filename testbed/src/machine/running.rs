//! A QEMU that runs: its output read, its monitor heard.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::boot_watch::BootWatch;
use super::monitor::{Cores, Message, Monitor};
use super::wish::{Wish, Wishes};

/// How often a booting machine is looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long a monitor may take to answer, and QEMU to go when asked.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// What QEMU calls a machine that was switched off.
const SWITCHED_OFF: &str = "guest-shutdown";

/// QEMU and all that is heard of it.
pub(super) struct Running {
    child: Child,
    monitor: Monitor,
    signs: mpsc::Receiver<Sign>,
    reader: JoinHandle<Vec<u8>>,
}

enum Sign {
    /// Its monitor said something.
    Said(Message),
    /// The task wants the machine to do what no machine does by itself.
    Wanted(Wish),
    /// QEMU is gone: nothing more will be printed.
    Gone,
}

/// Why a machine is waited for no longer.
pub(super) enum Patience {
    /// QEMU is gone.
    Gone,
    /// The machine was switched off.
    SwitchedOff,
    /// It stopped by itself in another way, in QEMU's words.
    Stopped(String),
    /// Its time was up.
    Limit,
    /// It hung before the task had begun.
    Boot,
}

impl Patience {
    /// Whether there is nothing to look into.
    pub(super) fn is_as_wished(&self) -> bool {
        matches!(self, Self::Gone | Self::SwitchedOff)
    }
}

impl Running {
    /// Starts QEMU. With `show`, what the task prints is copied to this process's output, too.
    pub(super) fn start(mut command: Command, show: bool) -> io::Result<Self> {
        let (monitor, standard_input) = Monitor::pair()?;
        command.stdin(standard_input).stdout(Stdio::piped());
        let (sender, signs) = mpsc::channel();
        let gone = sender.clone();
        monitor.listen(move |message| drop(sender.send(Sign::Said(message))))?;
        // The last that can fail: nothing is left running.
        let mut child = command.spawn()?;
        let pipe = child.stdout.take();
        let reader = thread::spawn(move || {
            let mut wishes = Wishes::default();
            let watch = |piece: &[u8]| {
                for wish in wishes.read(piece) {
                    let _ = gone.send(Sign::Wanted(wish));
                }
            };
            let output = pipe.map_or_else(Vec::new, |pipe| read_all(pipe, show, watch));
            // Nobody listens any more if patience is at its end.
            let _ = gone.send(Sign::Gone);
            output
        });
        Ok(Self {
            child,
            monitor,
            signs,
            reader,
        })
    }

    /// Waits until the machine has stopped, for as long as `limit`.
    pub(super) fn wait(&mut self, boot: &mut BootWatch, limit: Duration) -> Patience {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.signs.recv_timeout(left.min(WATCH_INTERVAL)) {
                Ok(Sign::Gone) => return Patience::Gone,
                Ok(Sign::Said(Message::Stopped(reason))) if reason == SWITCHED_OFF => {
                    return Patience::SwitchedOff;
                }
                Ok(Sign::Said(Message::Stopped(reason))) => return Patience::Stopped(reason),
                Ok(Sign::Said(Message::Answer(refusal))) if !refusal.is_empty() => {
                    return Patience::Stopped(refusal);
                }
                Ok(Sign::Wanted(Wish::MachineCheck { core })) => {
                    // One that is deaf is gone, which is heard as well.
                    let _ = self.monitor.check(core);
                }
                _ if left.is_zero() => return Patience::Limit,
                _ if boot.hangs() => return Patience::Boot,
                _ => {}
            }
        }
    }

    /// Stops the machine and looks at its cores: none when QEMU does not tell.
    pub(super) fn cores(&mut self) -> Cores {
        if self.monitor.ask_for_cores().is_err() {
            return Cores::default();
        }
        while let Ok(Sign::Said(message)) = self.signs.recv_timeout(ANSWER_LIMIT) {
            if let Message::Answer(text) = message {
                return Cores(text);
            }
        }
        Cores::default()
    }

    /// Ends QEMU. Answers what was printed, and QEMU's status.
    pub(super) fn end(mut self) -> io::Result<(Vec<u8>, ExitStatus)> {
        let asked = self.monitor.quit().is_ok();
        if !asked || !self.goes() {
            // It is gone already, or deaf.
            let _ = self.child.kill();
        }
        let status = self.child.wait()?;
        Ok((self.reader.join().unwrap_or_default(), status))
    }

    fn goes(&self) -> bool {
        let deadline = Instant::now() + ANSWER_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.signs.recv_timeout(left) {
                Ok(Sign::Gone) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Reads to the end. What was read before an error counts.
fn read_all(mut pipe: impl Read, show: bool, mut watch: impl FnMut(&[u8])) -> Vec<u8> {
    let (mut output, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => return output,
            Ok(size) => {
                output.extend_from_slice(&piece[..size]);
                watch(&piece[..size]);
                if show {
                    // Output that nobody wants is no reason to stop the machine.
                    let mut out = io::stdout().lock();
                    let _ = out.write_all(&piece[..size]).and_then(|()| out.flush());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return output,
        }
    }
}

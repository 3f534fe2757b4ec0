//! Other processes of the base that echo messages: compared with a channel to a node. Sleeping ones
//! are `cat`, polling ones the probe.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use insula_channel::Message;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::eventfd::EventFd;
use nix::unistd::Pid;

use super::PROBE;
use crate::responder::{request, retry, set_nonblocking};
use crate::rings::{RingsEnd, Side};

/// File of the rings to another process, in memory.
const RINGS: &str = "/run/rings";

/// A process, killed when this is dropped.
struct Process(Child);

impl Process {
    /// Starts it on that core.
    fn start(core: usize, words: &[&str], input: Stdio, output: Stdio) -> io::Result<Self> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(input).stdout(output);
        let process = Self(command.spawn()?);
        pin(process.0.id() as i32, core)?;
        Ok(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pair of pipes to a process.
pub struct Pipes {
    to: ChildStdin,
    from: ChildStdout,
    _process: Process,
}

impl Pipes {
    /// Pipes to a process that echoes, and sleeps until a message comes.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(core: usize) -> io::Result<Self> {
        Self::to(core, &["cat"])
    }

    /// Pipes to a process that echoes. Neither side ever sleeps.
    ///
    /// # Errors
    /// When it does not start.
    pub fn polling(core: usize) -> io::Result<Self> {
        let pipes = Self::to(core, &[PROBE, "polling"])?;
        set_nonblocking(&pipes.to)?;
        set_nonblocking(&pipes.from)?;
        Ok(pipes)
    }

    /// Pipes to a process that sends as many messages as requested.
    ///
    /// # Errors
    /// When it does not start.
    pub fn flood(core: usize) -> io::Result<Self> {
        Self::to(core, &[PROBE, "flood"])
    }

    fn to(core: usize, words: &[&str]) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
        let mut process = Process::start(core, words, Stdio::piped(), Stdio::piped())?;
        Ok(Self {
            to: process.0.stdin.take().ok_or_else(missing)?,
            from: process.0.stdout.take().ok_or_else(missing)?,
            _process: process,
        })
    }

    /// Sends bytes there and back.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn echo(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.from.read_exact(bytes)
    }

    /// The same, polling: few enough bytes for a pipe to take and give in one call.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn echo_polling(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        retry(|| self.to.write_all(bytes))?;
        retry(|| self.from.read_exact(bytes))
    }

    /// Requests so many messages, as long as `buffer` each, and receives them.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn receive(&mut self, count: u32, buffer: &mut [u8]) -> io::Result<()> {
        let size = u32::try_from(buffer.len()).map_err(io::Error::other)?;
        self.to.write_all(&request(count, size))?;
        (0..count).try_for_each(|_| self.from.read_exact(buffer))
    }
}

/// Rings in memory shared with a process that echoes. Neither side ever sleeps.
pub struct PolledRings {
    end: RingsEnd,
    _process: Process,
}

impl PolledRings {
    /// Starts it on that core.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(core: usize) -> io::Result<Self> {
        let path = Path::new(RINGS);
        RingsEnd::make(path)?;
        let end = RingsEnd::open(path, Side::First)?;
        let words = [PROBE, "rings", RINGS];
        let process = Process::start(core, &words, Stdio::null(), Stdio::null())?;
        let mut rings = Self {
            end,
            _process: process,
        };
        // Once echoed, both have the file mapped.
        rings.echo(&mut [7])?;
        fs::remove_file(path)?;
        Ok(rings)
    }

    /// Sends bytes there and back.
    ///
    /// # Errors
    /// When the rings are corrupt.
    pub fn echo(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.end.send(&Message::bytes(0, bytes))?;
        let received = self.end.receive(bytes).map_err(io::Error::other)?;
        match received.bytes(bytes).len() == bytes.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A pair of eventfds to a process that copies counts, and sleeps until there is one.
pub struct Events {
    to: EventFd,
    from: EventFd,
    _process: Process,
}

impl Events {
    /// Starts it on that core.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(core: usize) -> io::Result<Self> {
        let (to, from) = (EventFd::new()?, EventFd::new()?);
        let end = |eventfd: &EventFd| eventfd.as_fd().try_clone_to_owned();
        let ends: (OwnedFd, OwnedFd) = (end(&to)?, end(&from)?);
        let process = Process::start(core, &["cat"], ends.0.into(), ends.1.into())?;
        Ok(Self {
            to,
            from,
            _process: process,
        })
    }

    /// Signals it, and waits to be signalled.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn echo(&self) -> io::Result<()> {
        self.to.write(1)?;
        self.from.read()?;
        Ok(())
    }
}

/// Binds a process, or this thread for 0, to one core.
///
/// # Errors
/// When the kernel refuses.
pub fn pin(process: i32, core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(process), &cores)?)
}

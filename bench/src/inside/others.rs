//! Other processes of the base, which send back what comes: what a channel to a node is measured
//! beside. It is `cat` in each case.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::eventfd::EventFd;
use nix::unistd::Pid;

/// A process, as long as this lives.
struct Cat(Child);

impl Cat {
    fn start(core: usize, input: Stdio, output: Stdio) -> io::Result<Self> {
        let process = Command::new("cat").stdin(input).stdout(output).spawn()?;
        let cat = Self(process);
        pin(cat.0.id() as i32, core)?;
        Ok(cat)
    }
}

impl Drop for Cat {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pair of pipes to such a process.
pub struct Pipes {
    to: ChildStdin,
    from: ChildStdout,
    _cat: Cat,
}

impl Pipes {
    /// Starts it, on that core.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(core: usize) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
        let mut cat = Cat::start(core, Stdio::piped(), Stdio::piped())?;
        Ok(Self {
            to: cat.0.stdin.take().ok_or_else(missing)?,
            from: cat.0.stdout.take().ok_or_else(missing)?,
            _cat: cat,
        })
    }

    /// Sends bytes there and back.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn echo(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.from.read_exact(bytes)
    }
}

/// A pair of eventfds to such a process: it copies counts.
pub struct Events {
    to: EventFd,
    from: EventFd,
    _cat: Cat,
}

impl Events {
    /// Starts it, on that core.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(core: usize) -> io::Result<Self> {
        let (to, from) = (EventFd::new()?, EventFd::new()?);
        let end = |eventfd: &EventFd| eventfd.as_fd().try_clone_to_owned();
        let ends: (OwnedFd, OwnedFd) = (end(&to)?, end(&from)?);
        let cat = Cat::start(core, ends.0.into(), ends.1.into())?;
        Ok(Self {
            to,
            from,
            _cat: cat,
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

/// Keeps a process, or this thread for 0, on one core.
///
/// # Errors
/// When the kernel refuses.
pub fn pin(process: i32, core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(process), &cores)?)
}

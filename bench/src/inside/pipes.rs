//! A pair of pipes to another process, which sends back what comes: what a channel to a node is
//! measured beside.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// The process.
pub struct Pipes {
    process: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Pipes {
    /// Starts it, on that core.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(core: usize) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
        let mut process = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        pin(process.id() as i32, core)?;
        Ok(Self {
            to: process.stdin.take().ok_or_else(missing)?,
            from: process.stdout.take().ok_or_else(missing)?,
            process,
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

impl Drop for Pipes {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
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

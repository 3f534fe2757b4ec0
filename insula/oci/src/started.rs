//! How `exec` knows that a process which it leaves in the background runs in the container's node: what stands for that process
//! inherits a pipe, and writes into it then.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time that it is waited for: agents of nodes whose snapshot an earlier Insula has taken do not tell.
const TIMEOUT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// The end of the pipe from which [`exec`](super::exec) reads.
pub(super) struct Started(OwnedFd);

impl Started {
    /// A pipe: this end, and the one that is inherited.
    pub(super) fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        Ok((Self(reader.into()), writer.into()))
    }

    /// Waits until the process runs, or what stands for it has ended, for some seconds at most. The other end must be closed in
    /// this process.
    pub(super) fn wait(&self) {
        let mut wanted = [PollFd::new(&self.0, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = poll(&mut wanted, Some(&TIMEOUT)) {}
    }
}

/// The inherited end, in the process that has it under this number.
///
/// # Errors
/// It has none.
pub(super) fn inherited(number: i32) -> io::Result<File> {
    let path = PathBuf::from(format!("/proc/self/fd/{number}"));
    File::options().write(true).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_byte_or_the_end_is_waited_for() {
        let (started, writer) = Started::pipe().unwrap();
        inherited(writer.as_raw_fd())
            .unwrap()
            .write_all(&[1])
            .unwrap();
        started.wait();
        let (started, writer) = Started::pipe().unwrap();
        drop(writer);
        started.wait();
    }
}

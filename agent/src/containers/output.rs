//! A container's log: its output, in memory and bounded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread, read};

/// Bytes of the newer part of a log: when it is full, it becomes the older one.
const PART_MAX: u64 = 1 << 20;

/// A log, in two files.
#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    written: Mutex<Written>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Written {
    /// Bytes ever written.
    total: u64,
    /// Bytes of the newer part.
    part: u64,
    /// Whether nothing more will be written.
    ended: bool,
}

impl Log {
    /// The log of a container in this folder, where there may be one already.
    pub(super) fn open(folder: &Path) -> Self {
        let log = Self {
            folder: folder.to_owned(),
            written: Mutex::default(),
            changed: Condvar::new(),
        };
        let size = |path: PathBuf| fs::metadata(path).map_or(0, |file| file.len());
        let (old, part) = (size(log.older()), size(log.newer()));
        *log.lock() = Written {
            total: old + part,
            part,
            ended: false,
        };
        log
    }

    fn newer(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn older(&self) -> PathBuf {
        self.folder.join("log.1")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all that comes from a pipe, until all its writers have gone.
    pub(super) fn fill(&self, from: &File) {
        let mut buffer = [0; 16 << 10];
        loop {
            let mut wanted = [PollFd::new(from, PollFlags::IN)];
            match poll(&mut wanted, None).and_then(|_| self.take(from, &mut buffer)) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Takes some bytes of a pipe, which are in the log as soon as the lock is released.
    fn take(&self, from: &File, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut written = self.lock();
        let count = read(from, &mut *buffer)?;
        // A full memory loses output, but does not stop its writer.
        let _ = self.append(&mut written, &buffer[..count]);
        self.changed.notify_all();
        Ok(count)
    }

    /// Waits until all that is in a pipe is in the log. Nobody must write to the pipe meanwhile.
    pub(super) fn drain(&self, from: &File) -> io::Result<()> {
        loop {
            let written = self.lock();
            if ioctl_fionread(from)? == 0 {
                return Ok(());
            }
            drop(self.changed.wait(written));
        }
    }

    fn append(&self, written: &mut Written, bytes: &[u8]) -> io::Result<()> {
        if written.part + bytes.len() as u64 > PART_MAX {
            fs::rename(self.newer(), self.older())?;
            written.part = 0;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.newer())?;
        file.write_all(bytes)?;
        written.part += bytes.len() as u64;
        written.total += bytes.len() as u64;
        Ok(())
    }

    /// Passes the log on: what there is of it, and if wanted what follows.
    pub(super) fn read(
        &self,
        follow: bool,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut read = 0;
        loop {
            let (bytes, total, ended) = self.after(read)?;
            take(&bytes)?;
            read = total;
            if !follow || ended {
                return Ok(());
            }
            let written = self.lock();
            drop(
                self.changed
                    .wait_while(written, |written| written.total == read && !written.ended),
            );
        }
    }

    /// What was written after this many bytes and is still there.
    fn after(&self, read: u64) -> io::Result<(Vec<u8>, u64, bool)> {
        let written = self.lock();
        let mut bytes = Vec::new();
        for part in [self.older(), self.newer()] {
            match File::open(part) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                file => drop(file?.read_to_end(&mut bytes)?),
            }
        }
        let wanted = usize::try_from(written.total - read).unwrap_or(usize::MAX);
        let from = bytes.len().saturating_sub(wanted);
        Ok((bytes.split_off(from), written.total, written.ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(log: &Log, bytes: &[u8]) {
        log.append(&mut log.lock(), bytes).unwrap();
    }

    #[test]
    fn a_log_is_bounded_and_followed() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::open(folder.path());
        append(&log, &[b'a'; PART_MAX as usize]);
        append(&log, b"bc");
        let mut seen = Vec::new();
        log.read(false, |bytes| {
            seen.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen.len(), PART_MAX as usize + 2);
        append(&log, &[b'd'; PART_MAX as usize - 2]);
        append(&log, b"ef");
        let (bytes, total, ended) = log.after(PART_MAX).unwrap();
        assert_eq!((&bytes[..3], ended), (&b"bcd"[..], false));
        assert_eq!(total, 2 * PART_MAX + 2);
    }

    #[test]
    fn a_log_that_is_opened_again_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        append(&Log::open(folder.path()), b"first ");
        let log = Log::open(folder.path());
        let (from, mut to) = io::pipe().unwrap();
        let from = File::from(std::os::fd::OwnedFd::from(from));
        to.write_all(b"second").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| log.fill(&from));
            log.drain(&from).unwrap();
            assert_eq!(log.after(0).unwrap().0, b"first second");
            drop(to);
        });
        let mut followed = Vec::new();
        log.read(true, |bytes| {
            followed.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        assert_eq!(followed, b"first second");
    }
}

//! mmap(2) of files. The base reads a file's content to where the program sees it, so what is mapped
//! is a copy, made once. A mapping for which a copy could be wrong is refused.

use crate::calls::number;
use crate::memory::zeroed;
use crate::process::areas::{AreaFlags, Rights};
use crate::process::errno::Errno;
use crate::process::space::Place;
use crate::process::{PAGE, Thread, fill};

/// Which part of which file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Descriptor.
    pub(super) file: u64,
    /// Where it begins: a multiple of the page size.
    pub(super) offset: u64,
}

/// Maps a part of a file.
///
/// # Errors
/// As of mmap(2); [`Errno::ENODEV`] for what would have to be the base's page cache.
pub(super) fn map_file(
    thread: &mut Thread,
    place: Place,
    (size, rights): (u64, Rights),
    part: Part,
    is_shared: bool,
) -> Result<u64, Errno> {
    if is_shared {
        let writes = rights.contains(Rights::WRITE);
        is_only_read(thread, part.file, writes)?;
    }
    let writable = Rights::READ | Rights::WRITE;
    let start = thread.with_space(|space, release| space.map(place, size, writable, release))?;
    let end = start + size;
    let done = copy_file(thread, (start, size), part, is_shared).and_then(|copied| {
        let filled = start + copied.next_multiple_of(PAGE).min(size);
        let flags = flags_of(rights, is_shared);
        thread.with_space(|space, release| {
            space.mark_file((start, filled, end), flags, release)?;
            match rights == writable {
                true => Ok(()),
                false => space.protect(start, end, rights, release),
            }
        })
    });
    if let Err(error) = done {
        thread.with_space(|space, release| space.unmap(start, end, release))?;
        return Err(error);
    }
    Ok(start)
}

fn flags_of(rights: Rights, is_shared: bool) -> AreaFlags {
    let mut flags = AreaFlags::empty();
    flags.set(AreaFlags::MAY_DIFFER, rights.contains(Rights::WRITE));
    flags.set(AreaFlags::NEVER_WRITABLE, is_shared);
    flags
}

/// Copies a part of a file into fresh memory; how many bytes there were.
fn copy_file(
    thread: &mut Thread,
    (start, size): (u64, u64),
    part: Part,
    is_shared: bool,
) -> Result<u64, Errno> {
    let status = FileStatus::of(thread, part.file, start)?;
    if status.is_folder() {
        return Err(Errno::ENODEV);
    }
    if is_shared {
        may_not_change(thread, part.file, &status, start)?;
    }
    // What passed for a buffer is to be as fresh as all else.
    let fresh = [0; FileStatus::SIZE];
    thread.process.space().write(start, &fresh)?;
    let size = match status.is_regular() {
        true => size.min(status.size.saturating_sub(part.offset)),
        false => size,
    };
    fill(thread, part.file, start, part.offset, size).map_err(|error| match error {
        // It is open, but not for reading.
        Errno::EBADF => Errno::EACCES,
        Errno::ESPIPE => Errno::ENODEV,
        error => error,
    })
}

/// Refuses to share what the program itself may change, here or by the descriptor: it expects to see
/// that.
fn is_only_read(thread: &mut Thread, file: u64, writes: bool) -> Result<(), Errno> {
    const GET_FLAGS: u64 = 3;
    const ACCESS_MODE: u64 = 3;
    const READ_ONLY: u64 = 0;
    const WRITE_ONLY: u64 = 1;
    let flags = thread.call(number::FCNTL, [file, GET_FLAGS, 0, 0, 0, 0])?;
    match flags & ACCESS_MODE {
        READ_ONLY if !writes => Ok(()),
        READ_ONLY | WRITE_ONLY => Err(Errno::EACCES),
        _ => Err(Errno::ENODEV),
    }
}

/// Refuses to share memory by which processes talk with each other. What is left are files that are
/// opened to be read (caches of locales, fonts and the like): of these the program sees what they were
/// when it mapped them.
fn may_not_change(
    thread: &mut Thread,
    file: u64,
    status: &FileStatus,
    buffer: u64,
) -> Result<(), Errno> {
    let may_change = match (status.is_regular(), status.links) {
        (false, _) => true,
        (true, 0) => !is_sealed(thread, file),
        (true, _) => is_shared_memory(thread, status, buffer),
    };
    match may_change {
        true => Err(Errno::ENODEV),
        false => Ok(()),
    }
}

/// Whether a file without a name, as of memfd_create(2), can be written by nobody any more.
fn is_sealed(thread: &mut Thread, file: u64) -> bool {
    const GET_SEALS: u64 = 1034;
    const AGAINST_WRITING: u64 = 8;
    let seals = thread.call(number::FCNTL, [file, GET_SEALS, 0, 0, 0, 0]);
    seals.is_ok_and(|seals| seals & AGAINST_WRITING != 0)
}

/// Whether a file lies where shm_open(3) has them.
fn is_shared_memory(thread: &mut Thread, status: &FileStatus, buffer: u64) -> bool {
    const FOLDER: &[u8] = b"/dev/shm\0";
    const ROOT: &[u8] = b"/\0";
    let mut device = |path: &[u8]| {
        thread.process.space().write(buffer, path)?;
        let status = FileStatus::named(thread, buffer)?;
        Ok::<_, Errno>(status.device)
    };
    // Where nothing is mounted there it is a folder like any other.
    device(FOLDER).is_ok_and(|shared| shared == status.device)
        && device(ROOT).is_ok_and(|root| root != status.device)
}

/// What the base says of a file: parts of `struct stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStatus {
    device: u64,
    links: u64,
    mode: u32,
    size: u64,
}

impl FileStatus {
    /// Bytes of `struct stat`.
    const SIZE: usize = 144;

    /// By a descriptor, through memory of the program's.
    fn of(thread: &mut Thread, file: u64, buffer: u64) -> Result<Self, Errno> {
        thread.call(number::FSTAT, [file, buffer, 0, 0, 0, 0])?;
        Self::read(thread, buffer)
    }

    /// By the path that lies in the buffer.
    fn named(thread: &mut Thread, buffer: u64) -> Result<Self, Errno> {
        thread.call(number::STAT, [buffer, buffer, 0, 0, 0, 0])?;
        Self::read(thread, buffer)
    }

    fn read(thread: &Thread, buffer: u64) -> Result<Self, Errno> {
        let mut bytes = zeroed(Self::SIZE)?;
        thread.process.space().read(buffer, &mut bytes)?;
        Ok(Self::from_bytes(&bytes))
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            device: word(0),
            links: word(16),
            mode: word(24) as u32,
            size: word(48),
        }
    }

    fn kind(&self) -> u32 {
        self.mode & 0o170_000
    }

    fn is_regular(&self) -> bool {
        self.kind() == 0o100_000
    }

    fn is_folder(&self) -> bool {
        self.kind() == 0o040_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_written_may_differ() {
        let flags =
            [Rights::READ, Rights::READ | Rights::WRITE].map(|rights| flags_of(rights, false));
        assert_eq!(flags, [AreaFlags::empty(), AreaFlags::MAY_DIFFER]);
        assert_eq!(flags_of(Rights::READ, true), AreaFlags::NEVER_WRITABLE);
    }
}

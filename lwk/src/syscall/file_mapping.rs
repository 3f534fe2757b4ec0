//! mmap(2) of files. The base reads the file's content into the program's memory, so a mapping is a
//! copy made once. A mapping for which a copy could be wrong is refused.

use crate::hw::memory::room::zeroed;
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::{PAGE, Protection, VmaFlags};
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::loader::read_file_into;
use crate::task::thread::Thread;

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilePart {
    /// File descriptor.
    pub(super) file: u64,
    /// Offset, a multiple of the page size.
    pub(super) offset: u64,
}

/// Maps a part of a file.
///
/// # Errors
/// As of mmap(2); [`Errno::ENODEV`] for mappings that need the base's page cache.
pub(super) async fn map_file(
    thread: &mut Thread,
    place: Placement,
    (size, protection): (u64, Protection),
    part: FilePart,
    is_shared: bool,
) -> Result<u64, Errno> {
    if is_shared {
        let writes = protection.contains(Protection::WRITE);
        require_read_only(thread, part.file, writes).await?;
    }
    let writable = Protection::READ | Protection::WRITE;
    let start = thread
        .change_space(move |space| space.map(place, size, writable))
        .await?;
    let copied = copy_file(thread, (start, size), part, is_shared).await;
    let done = match copied {
        Ok(copied) => {
            let filled = start + copied.next_multiple_of(PAGE).min(size);
            let flags = flags_of(protection, is_shared);
            mark_copy(thread, (start, filled, start + size), protection, flags).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = done {
        thread.unmap_buffer(start, size).await?;
        return Err(error);
    }
    Ok(start)
}

/// Marks the copy of a file as such, and sets its protection.
async fn mark_copy(
    thread: &mut Thread,
    (start, filled, end): (u64, u64, u64),
    protection: Protection,
    flags: VmaFlags,
) -> Result<(), Errno> {
    let mark = move |space: &mut AddressSpace| {
        space.mark_file((start, filled, end), flags)?;
        match protection == Protection::READ | Protection::WRITE {
            true => Ok(()),
            false => space.protect(start, end, protection),
        }
    };
    thread.change_space(mark).await
}

fn flags_of(protection: Protection, is_shared: bool) -> VmaFlags {
    let mut flags = VmaFlags::empty();
    flags.set(
        VmaFlags::MAY_BE_DIRTY,
        protection.contains(Protection::WRITE),
    );
    flags.set(VmaFlags::DENY_WRITE, is_shared);
    flags
}

/// Copies a part of a file into fresh memory. Returns the number of bytes read.
async fn copy_file(
    thread: &mut Thread,
    (start, size): (u64, u64),
    part: FilePart,
    is_shared: bool,
) -> Result<u64, Errno> {
    let status = FileStatus::of(thread, part.file, start).await?;
    if status.is_directory() {
        return Err(Errno::ENODEV);
    }
    if is_shared {
        require_unchanging(thread, part.file, &status, start).await?;
    }
    // Clear what was used as a buffer.
    let fresh = [0; FileStatus::SIZE];
    thread.process.space().write(start, &fresh)?;
    let size = match status.is_regular() {
        true => size.min(status.size.saturating_sub(part.offset)),
        false => size,
    };
    let read = read_file_into(thread, part.file, start, part.offset, size).await;
    read.map_err(|error| match error {
        // The file is open, but not for reading.
        Errno::EBADF => Errno::EACCES,
        Errno::ESPIPE => Errno::ENODEV,
        error => error,
    })
}

/// Refuses a shared mapping of a file that the program itself may write, by the mapping or the
/// descriptor: it expects to see those writes.
async fn require_read_only(thread: &mut Thread, file: u64, writes: bool) -> Result<(), Errno> {
    const GET_FLAGS: u64 = 3;
    const ACCESS_MODE: u64 = 3;
    const READ_ONLY: u64 = 0;
    const WRITE_ONLY: u64 = 1;
    let flags = thread
        .remote_syscall(number::FCNTL, [file, GET_FLAGS, 0, 0, 0, 0])
        .await?;
    match flags & ACCESS_MODE {
        READ_ONLY if !writes => Ok(()),
        READ_ONLY | WRITE_ONLY => Err(Errno::EACCES),
        _ => Err(Errno::ENODEV),
    }
}

/// Refuses a shared mapping of memory that processes communicate through. Allowed are files opened
/// for reading (locale archives, font caches and the like): the program sees their content as of
/// the mmap call.
async fn require_unchanging(
    thread: &mut Thread,
    file: u64,
    status: &FileStatus,
    buffer: u64,
) -> Result<(), Errno> {
    let may_change = match (status.is_regular(), status.links) {
        (false, _) => true,
        (true, 0) => !is_sealed(thread, file).await,
        (true, _) => is_shared_memory(thread, status, buffer).await,
    };
    match may_change {
        true => Err(Errno::ENODEV),
        false => Ok(()),
    }
}

/// Whether a file without a name, as from memfd_create(2), is sealed against writing.
async fn is_sealed(thread: &mut Thread, file: u64) -> bool {
    const GET_SEALS: u64 = 1034;
    const SEAL_WRITE: u64 = 8;
    let seals = thread
        .remote_syscall(number::FCNTL, [file, GET_SEALS, 0, 0, 0, 0])
        .await;
    seals.is_ok_and(|seals| seals & SEAL_WRITE != 0)
}

/// Whether a file is on the file system of shm_open(3).
async fn is_shared_memory(thread: &mut Thread, status: &FileStatus, buffer: u64) -> bool {
    // If nothing is mounted there, it is an ordinary directory.
    device(thread, buffer, b"/dev/shm\0").await == Ok(status.device)
        && device(thread, buffer, b"/\0")
            .await
            .is_ok_and(|root| root != status.device)
}

/// Returns the device that a path, which ends with a NUL, is on.
async fn device(thread: &mut Thread, buffer: u64, path: &[u8]) -> Result<u64, Errno> {
    thread.process.space().write(buffer, path)?;
    Ok(FileStatus::named(thread, buffer).await?.device)
}

/// Status of a file: parts of `struct stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStatus {
    device: u64,
    links: u64,
    mode: u32,
    size: u64,
}

impl FileStatus {
    /// Size of `struct stat`, in bytes.
    const SIZE: usize = 144;

    /// Reads the status of a descriptor, through a buffer in the program's memory.
    async fn of(thread: &mut Thread, file: u64, buffer: u64) -> Result<Self, Errno> {
        thread
            .remote_syscall(number::FSTAT, [file, buffer, 0, 0, 0, 0])
            .await?;
        Self::read(thread, buffer)
    }

    /// Reads the status of the path in the buffer.
    async fn named(thread: &mut Thread, buffer: u64) -> Result<Self, Errno> {
        thread
            .remote_syscall(number::STAT, [buffer, buffer, 0, 0, 0, 0])
            .await?;
        Self::read(thread, buffer)
    }

    pub(super) fn read(thread: &Thread, buffer: u64) -> Result<Self, Errno> {
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

    fn is_directory(&self) -> bool {
        self.kind() == 0o040_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_mappings_may_be_dirty() {
        let flags = [Protection::READ, Protection::READ | Protection::WRITE]
            .map(|protection| flags_of(protection, false));
        assert_eq!(flags, [VmaFlags::empty(), VmaFlags::MAY_BE_DIRTY]);
        assert_eq!(flags_of(Protection::READ, true), VmaFlags::DENY_WRITE);
    }
}

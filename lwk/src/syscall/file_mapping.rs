//! Private file mappings that are memory of the node: copies, which the base reads into it. These are
//! the data of libraries, which the base is not to take back; and what is mapped while processes share
//! a memory, as a mapping of the base would be in one of their proxies only.

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

/// Maps a copy of a part of a file.
///
/// # Errors
/// As of mmap(2).
pub(super) async fn map_copy(
    thread: &mut Thread,
    place: Placement,
    (size, protection): (u64, Protection),
    part: FilePart,
) -> Result<u64, Errno> {
    let writable = Protection::READ | Protection::WRITE;
    let start = thread
        .change_space(move |space| space.map(place, size, writable))
        .await?;
    let copied = copy_file(thread, (start, size), part).await;
    let done = match copied {
        Ok(copied) => {
            let filled = start + copied.next_multiple_of(PAGE).min(size);
            mark_copy(thread, (start, filled, start + size), protection).await
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
) -> Result<(), Errno> {
    let mut flags = VmaFlags::empty();
    flags.set(
        VmaFlags::MAY_BE_DIRTY,
        protection.contains(Protection::WRITE),
    );
    let mark = move |space: &mut AddressSpace| {
        space.mark_file((start, filled, end), flags)?;
        match protection == Protection::READ | Protection::WRITE {
            true => Ok(()),
            false => space.protect(start, end, protection),
        }
    };
    thread.change_space(mark).await
}

/// Copies a part of a file into fresh memory. Returns the number of bytes read.
async fn copy_file(
    thread: &mut Thread,
    (start, size): (u64, u64),
    part: FilePart,
) -> Result<u64, Errno> {
    let status = FileStatus::of(thread, part.file, start).await?;
    if status.is_directory() {
        return Err(Errno::ENODEV);
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

/// Whether a file is one of hugetlbfs.
pub(super) async fn is_of_hugetlbfs(thread: &mut Thread, file: u64) -> Result<bool, Errno> {
    /// `HUGETLBFS_MAGIC`: the first word of `struct statfs`.
    const MAGIC: [u8; 8] = 0x9584_58f6_u64.to_le_bytes();
    let buffer = thread.map_buffer(PAGE).await?;
    let arguments = [file, buffer, 0, 0, 0, 0];
    let told = thread.remote_syscall(number::FSTATFS, arguments).await;
    let mut kind = [0; 8];
    let read = thread.process.space().read(buffer, &mut kind);
    thread.unmap_buffer(buffer, PAGE).await?;
    // The base says what is wrong with the file.
    Ok(told.is_ok() && read.is_ok() && kind == MAGIC)
}

/// Status of a file: parts of `struct stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStatus {
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

    pub(super) fn read(thread: &Thread, buffer: u64) -> Result<Self, Errno> {
        let mut bytes = zeroed(Self::SIZE)?;
        thread.process.space().read(buffer, &mut bytes)?;
        Ok(Self::from_bytes(&bytes))
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
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

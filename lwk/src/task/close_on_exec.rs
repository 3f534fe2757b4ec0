//! Closing the close-on-exec files of a program that executes another.

use alloc::vec::Vec;
use core::ops::Range;

use crate::hw::memory::room::zeroed;
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::PAGE;
use crate::task::thread::Thread;

/// Closes the close-on-exec files. /proc is read in parts of the buffer's size.
pub(super) async fn close_on_exec(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    const AT_FDCWD: u64 = -100_i64 as u64;
    const DIRECTORY_CLOEXEC: u64 = 0o2_200_000;
    thread.process.space().write(buffer, b"/proc/self/fd\0")?;
    let how = [AT_FDCWD, buffer, DIRECTORY_CLOEXEC, 0, 0, 0];
    let directory = match thread.remote_syscall(number::OPENAT, how).await {
        Ok(directory) => directory,
        // Without /proc all descriptor numbers are probed.
        Err(Errno::ENOENT) => return close_by_probing(thread, buffer).await,
        Err(error) => return Err(error),
    };
    loop {
        let read = thread
            .remote_syscall(number::GETDENTS64, [directory, buffer, PAGE, 0, 0, 0])
            .await?;
        if read == 0 {
            break;
        }
        let mut entries = zeroed(read.min(PAGE) as usize)?;
        thread.process.space().read(buffer, &mut entries)?;
        let mut files = numbers(&entries);
        // Positions in this directory are descriptor numbers, so closing files does not disturb
        // reading it.
        files.retain(|&file| file != directory);
        close_if_cloexec(thread, &files).await?;
    }
    thread
        .remote_syscall(number::CLOSE, [directory, 0, 0, 0, 0, 0])
        .await
        .map(drop)
}

/// Closes those files that have the close-on-exec flag.
async fn close_if_cloexec(thread: &mut Thread, files: &[u64]) -> Result<(), Errno> {
    const CLOSE_ON_EXEC: u64 = 1;
    const GET_FLAGS: u64 = 1;
    let own = thread.process.pages().mirror_fd();
    for &file in files.iter().filter(|&&file| file != own) {
        let flags = thread
            .remote_syscall(number::FCNTL, [file, GET_FLAGS, 0, 0, 0, 0])
            .await;
        if flags.is_ok_and(|flags| flags & CLOSE_ON_EXEC != 0) {
            thread
                .remote_syscall(number::CLOSE, [file, 0, 0, 0, 0, 0])
                .await?;
        }
    }
    Ok(())
}

/// Closes the close-on-exec files without /proc: poll(2) reports which of many numbers are open.
async fn close_by_probing(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    /// Default maximum number of descriptors of a process (`fs.nr_open`).
    const MOST: u64 = 1 << 20;
    let mut first = 0;
    // A page of them at a time, or fewer if RLIMIT_NOFILE is lower.
    let mut count = PAGE / size_of::<PollFd>() as u64;
    while first < MOST {
        match probe_open(thread, buffer, first..first + count).await {
            Ok(open) => close_if_cloexec(thread, &open).await?,
            Err(Errno::EINVAL) if count > 1 => {
                count /= 2;
                continue;
            }
            Err(Errno::EINVAL) => close_if_cloexec(thread, &[first]).await?,
            Err(error) => return Err(error),
        }
        first += count;
    }
    Ok(())
}

async fn probe_open(
    thread: &mut Thread,
    buffer: u64,
    numbers: Range<u64>,
) -> Result<Vec<u64>, Errno> {
    let mut entries: Vec<u8> = numbers.clone().flat_map(u64::to_le_bytes).collect();
    thread.process.space().write(buffer, &entries)?;
    let count = numbers.end - numbers.start;
    thread
        .remote_syscall(number::POLL, [buffer, count, 0, 0, 0, 0])
        .await?;
    thread.process.space().read(buffer, &mut entries)?;
    let entries = entries.as_chunks().0.iter();
    let open = numbers.zip(entries).filter(|(_, entry)| is_open(entry));
    Ok(open.map(|(number, _)| number).collect())
}

/// `struct pollfd`: descriptor, requested events, returned events.
type PollFd = [u8; 8];

/// Whether a `struct pollfd` returned by poll(2) is of an open file.
fn is_open(entry: &PollFd) -> bool {
    /// `POLLNVAL`, in the returned events.
    const POLLNVAL: u8 = 0x20;
    entry[6] & POLLNVAL == 0
}

/// Returns the names in directory entries that are numbers (getdents64(2)).
fn numbers(entries: &[u8]) -> Vec<u64> {
    const SIZE_AT: usize = 16;
    const NAME_AT: usize = 19;
    let mut found = Vec::new();
    let mut rest = entries;
    while let Some(size) = rest.get(SIZE_AT..SIZE_AT + 2) {
        let size = usize::from(u16::from_le_bytes([size[0], size[1]]));
        let Some(name) = rest.get(NAME_AT..size) else {
            break;
        };
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        found.extend(
            core::str::from_utf8(name)
                .ok()
                .and_then(|name| name.parse::<u64>().ok()),
        );
        rest = &rest[size..];
    }
    found
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::numbers;

    fn entry(name: &str) -> Vec<u8> {
        let size = (20 + name.len()).next_multiple_of(8);
        let mut bytes = std::vec![0; size];
        bytes[16..18].copy_from_slice(&(size as u16).to_le_bytes());
        bytes[19..19 + name.len()].copy_from_slice(name.as_bytes());
        bytes
    }

    #[test]
    fn descriptor_numbers_are_read_from_directory_entries() {
        let entries = [".", "..", "0", "17", "1048575"].map(entry).concat();
        assert_eq!(numbers(&entries), [0, 17, 1_048_575]);
        assert_eq!(numbers(&entries[..entries.len() - 1]), [0, 17]);
        assert_eq!(numbers(&[0xff; 40]), []);
        assert_eq!(numbers(&[0; 40]), []);
    }
}

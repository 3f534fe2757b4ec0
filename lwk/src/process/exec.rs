//! execve(2).
//!
//! First the files are opened; on failure the program goes on. Then all other threads exit, and the
//! one left becomes the thread group leader. Memory shared with another process (vfork(2)) is left
//! to that.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use super::address_space::{AddressSpace, Invalidation};
use super::errno::Errno;
use super::initial_stack::Arguments;
use super::loader;
use super::mm::Mm;
use super::program_file::{self, Image, LoadError};
use super::signals::frame::AltStack;
use super::{PAGE, Thread, layout, robust_list};
use crate::memory::zeroed;
use crate::syscall::number;
use crate::{clock, cores, info};

/// Size of the buffer for a path and the head of a file.
const BUFFER_SIZE: u64 = 4 * PAGE;

/// A prepared execve(2).
#[derive(Debug)]
pub(super) struct PendingExec {
    buffer: u64,
    arguments: Arguments,
    image: Image,
}

/// Prepares to execute another program: opens it and makes all other threads exit. [`finish_exec`]
/// completes that when they have. A relative path starts at `directory`.
///
/// # Errors
/// As of execve(2): the program goes on.
pub(crate) async fn exec(
    thread: &mut Thread,
    directory: u64,
    mut arguments: Arguments,
) -> Result<(), Errno> {
    let buffer = thread.map_buffer(BUFFER_SIZE).await?;
    let found = program_file::open_program(thread, directory, &mut arguments, buffer).await;
    let error = match found {
        Ok(image) if thread.process.kill_other_threads(thread.id) => {
            thread.pending_exec = Some(Box::new(PendingExec {
                buffer,
                arguments,
                image,
            }));
            return Ok(());
        }
        // Another thread was first, so this one exits.
        Ok(image) => {
            image.close(thread).await;
            Errno::EAGAIN
        }
        Err(LoadError::Syscall(errno)) => errno,
        Err(LoadError::Format(_)) => Errno::ENOEXEC,
    };
    thread.unmap_buffer(buffer, BUFFER_SIZE).await?;
    Err(error)
}

/// Completes execve(2) in the only thread left.
///
/// # Errors
/// [`Errno::ENOMEM`]; [`Errno::EBUSY`] if the base keeps pages of shared memory pinned.
pub(crate) async fn finish_exec(thread: &mut Thread) -> Result<(), Errno> {
    let Some(next) = thread.pending_exec.take() else {
        return Ok(());
    };
    let PendingExec {
        buffer,
        arguments,
        image,
    } = *next;
    thread.become_leader();
    thread.process.exec_thread.store(0, Ordering::Release);
    set_name(thread, buffer, &arguments.path, image.file()).await;
    robust_list::release(thread);
    if let Err(error) = replace_mm(thread, buffer).await {
        image.close(thread).await;
        return Err(error);
    }
    reset_thread(thread).await;
    thread.process.complete_vfork();
    load_new_program(thread, &arguments, image).await;
    Ok(())
}

/// Empties the program's memory, or replaces it if it is shared.
async fn replace_mm(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    if !thread.process.mm().is_shared() {
        return thread.change_space(AddressSpace::clear).await;
    }
    thread.clear_tid_word();
    thread.unmap_buffer(buffer, BUFFER_SIZE).await?;
    let mm = thread.process.mm();
    // With the change lock no other process requests an invalidation.
    let guard = mm.change().await;
    let own = leave_shared_mm(thread, &mm).await;
    drop(guard);
    let pages = *thread.process.pages();
    *thread.process.mm.lock() = Mm::new(own?, pages);
    mm.remove_sharer(&pages);
    Ok(())
}

/// Gives a process an address space of its own, whose page table the base uses from then on.
async fn leave_shared_mm(thread: &mut Thread, mm: &Mm) -> Result<AddressSpace, Errno> {
    let pages = *thread.process.pages();
    let (bounds, limit, root) = {
        let space = mm.space();
        (space.bounds(), space.limit(), space.root())
    };
    let own = crate::start::with_kernel_table(|kernel| AddressSpace::new(kernel, bounds));
    let mut own = own?;
    own.set_limit(limit);
    pages.set_page_table(0);
    if is_any_pinned(thread, bounds).await {
        pages.set_page_table(root.0);
        own.free();
        return Err(Errno::EBUSY);
    }
    pages.set_page_table(own.root().0);
    Ok(own)
}

/// Whether pages of a range stay pinned after its invalidation, for longer than a timeout.
async fn is_any_pinned(thread: &mut Thread, (start, end): (u64, u64)) -> bool {
    /// Most I/O has finished by then.
    const TIMEOUT_NS: u64 = 100_000_000;
    const PERIOD_NS: u64 = 1_000_000;
    let limit_ns = clock::now_ns() + TIMEOUT_NS;
    let range = Invalidation {
        start,
        end,
        keeps_pages: false,
        force: true,
    };
    while thread.invalidate(&range).await.is_any() {
        let now_ns = clock::now_ns();
        if now_ns > limit_ns {
            return true;
        }
        cores::sleep_until(now_ns + PERIOD_NS).await;
    }
    false
}

/// Loads the program. On failure the process is killed.
async fn load_new_program(thread: &mut Thread, arguments: &Arguments, image: Image) {
    if load_and_close(thread, arguments, image).await.is_err() {
        const KILLED: u64 = 9;
        info!(
            "process {} is killed: loading the new program failed",
            thread.id
        );
        thread.exit_process(KILLED);
    }
}

/// Loads the program, then closes the close-on-exec files.
async fn load_and_close(
    thread: &mut Thread,
    arguments: &Arguments,
    image: Image,
) -> Result<(), LoadError> {
    loader::load_replacement(thread, arguments, image).await?;
    // The lower end of its stack is mapped, but not used yet.
    let (buffer, _) = thread.process.space().stack();
    close_on_exec(thread, buffer).await?;
    Ok(layout::trim_stack(thread).await?)
}

/// Resets the state that a thread had from the old program.
async fn reset_thread(thread: &mut Thread) {
    let timers = thread.process.signals().take_timers();
    for timer in timers {
        // It fails only if the timer or the proxy is gone.
        let _ = thread
            .remote_syscall(number::TIMER_DELETE, [timer.id.into(), 0, 0, 0, 0, 0])
            .await;
    }
    thread.process.signals().clear_handlers();
    thread.context = insula_bare::UserContext::default();
    thread.extended.reset();
    thread.clear_child_tid = 0;
    thread.robust_list = (0, 0);
    thread.rseq = None;
    thread.alt_stack = AltStack::default();
    thread.last_exception = [0; 3];
}

/// Sets the process's name and executable on the base, as far as it may.
async fn set_name(thread: &mut Thread, buffer: u64, path: &[u8], file: u64) {
    const SET_NAME: u64 = 15;
    const SET_MM: u64 = 35;
    const EXE_FILE: u64 = 13;
    let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let mut name = last.to_vec();
    name.push(0);
    let written = thread.process.space().write(buffer, &name);
    if written.is_ok() {
        let _ = thread
            .remote_syscall(number::PRCTL, [SET_NAME, buffer, 0, 0, 0, 0])
            .await;
    }
    let _ = thread
        .remote_syscall(number::PRCTL, [SET_MM, EXE_FILE, file, 0, 0, 0])
        .await;
}

/// Closes the close-on-exec files. /proc is read in parts of the buffer's size.
async fn close_on_exec(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
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

//! A program that becomes another: execve(2).
//!
//! The files are looked up first: until then the program can go on as it is. Then all its other threads
//! end, and the one that is left becomes the first one. A program that has its memory together with
//! another (vfork(2)) leaves that as it is.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use super::areas::Rights;
use super::begin::{self, BeginError, Image};
use super::errno::Errno;
use super::memory::Memory;
use super::signals::frame::Alternate;
use super::space::{Place, Space};
use super::stack::Arguments;
use super::{PAGE, Thread, layout, robust};
use crate::calls::number;
use crate::memory::zeroed;
use crate::{clock, cores, info};

/// Bytes of memory by which files are found: for a path, and the beginning of a file.
const BUFFER_SIZE: u64 = 4 * PAGE;

/// What a thread's program will be.
#[derive(Debug)]
pub(super) struct Next {
    buffer: u64,
    arguments: Arguments,
    image: Image,
}

/// Has a thread's program become another, by [`become_next`] when all its other threads have ended,
/// as they are told to. `folder` is where a relative path begins.
///
/// # Errors
/// As of execve(2): the program is what it was.
pub(crate) fn exec(
    thread: &mut Thread,
    folder: u64,
    mut arguments: Arguments,
) -> Result<(), Errno> {
    let rights = Rights::READ | Rights::WRITE;
    let buffer = thread
        .with_space(|space, release| space.map(Place::Near(0), BUFFER_SIZE, rights, release))?;
    let found = begin::find(thread, folder, &mut arguments, buffer);
    let error = match found {
        Ok(image) if thread.process.leave_only(thread.id) => {
            thread.next = Some(Box::new(Next {
                buffer,
                arguments,
                image,
            }));
            return Ok(());
        }
        // Another thread was faster: this one is to end.
        Ok(image) => {
            image.close(thread);
            Errno::EAGAIN
        }
        Err(BeginError::Call(errno)) => errno,
        Err(BeginError::File(_)) => Errno::ENOEXEC,
    };
    let end = buffer + BUFFER_SIZE;
    thread.with_space(|space, release| space.unmap(buffer, end, release))?;
    Err(error)
}

/// Has a thread that is the only one of its program become what it is to be.
///
/// # Errors
/// [`Errno::ENOMEM`]; [`Errno::EBUSY`] if something of the base holds memory of it that it has together
/// with another.
pub(crate) fn become_next(thread: &mut Thread) -> Result<(), Errno> {
    let Some(next) = thread.next.take() else {
        return Ok(());
    };
    let Next {
        buffer,
        arguments,
        image,
    } = *next;
    thread.lead();
    thread.process.survivor.store(0, Ordering::Release);
    name(thread, buffer, &arguments.path, image.file());
    robust::give_up(thread);
    if let Err(error) = leave_memory(thread, buffer) {
        image.close(thread);
        return Err(error);
    }
    forget(thread);
    thread.process.let_parent_go();
    go_on(thread, &arguments, image);
    Ok(())
}

/// Gives up a program's memory: what is its own, or its part in what it has with others.
fn leave_memory(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    let memory = thread.process.memory();
    if !memory.is_shared() {
        return thread.with_space(|space, release| space.clear(release));
    }
    thread.tell_end_of_thread();
    let end = buffer + BUFFER_SIZE;
    thread.with_space(|space, release| space.unmap(buffer, end, release))?;
    let pages = *thread.process.pages();
    let own = {
        // Nobody asks the base to let go of anything in between.
        let space = memory.space();
        let (start, end) = space.bounds();
        let own = crate::start::with_kernel_table(|kernel| Space::new(kernel, (start, end)));
        let mut own = own?;
        own.set_limit(space.limit());
        pages.set_page_table(0);
        if is_any_pinned(thread, start, end) {
            pages.set_page_table(space.root().0);
            own.free();
            return Err(Errno::EBUSY);
        }
        own
    };
    cores::use_space(own.root());
    pages.set_page_table(own.root().0);
    *thread.process.memory.lock() = Memory::new(own, pages);
    memory.leave(&pages);
    Ok(())
}

/// Whether, when the base has let go of a range, something still pins pages of it, and goes on to do so.
fn is_any_pinned(thread: &mut Thread, start: u64, end: u64) -> bool {
    /// Most I/O is done by then.
    const PATIENCE_NS: u64 = 100_000_000;
    let limit_ns = clock::now_ns() + PATIENCE_NS;
    while thread.release(start, end, 0).is_any() {
        if clock::now_ns() > limit_ns {
            return true;
        }
    }
    false
}

/// From here on there is no way back.
fn go_on(thread: &mut Thread, arguments: &Arguments, image: Image) {
    let replaced = begin::replace(thread, arguments, image);
    let done = replaced.map_err(|_| ()).and_then(|()| {
        // Its stack's lower end is there, and unused yet.
        let (buffer, _) = thread.process.space().stack();
        close_files(thread, buffer)
            .and_then(|()| layout::trim_stack(thread))
            .map_err(|_| ())
    });
    if done.is_err() {
        const KILLED: u64 = 9;
        info!("process {} does not become another program", thread.id);
        thread.exit_process(KILLED);
    }
}

/// What a thread has of the program that was.
fn forget(thread: &mut Thread) {
    let timers = thread.process.signals().take_timers();
    for timer in timers {
        // It was there, or nobody is left to be told.
        let _ = thread.call(number::TIMER_DELETE, [timer.id.into(), 0, 0, 0, 0, 0]);
    }
    thread.process.signals().clear_handlers();
    thread.context = insula_bare::UserContext::default();
    thread.extended.reset();
    thread.extended.load();
    thread.clear_at_end = 0;
    thread.robust = (0, 0);
    thread.rseq = None;
    thread.alternate = Alternate::default();
    thread.fault = [0; 3];
}

/// Has the base know the process by its new program. Not all may do so.
fn name(thread: &mut Thread, buffer: u64, path: &[u8], file: u64) {
    const SET_NAME: u64 = 15;
    const SET_MM: u64 = 35;
    const EXE_FILE: u64 = 13;
    let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let mut name = last.to_vec();
    name.push(0);
    if thread.process.space().write(buffer, &name).is_ok() {
        let _ = thread.call(number::PRCTL, [SET_NAME, buffer, 0, 0, 0, 0]);
    }
    let _ = thread.call(number::PRCTL, [SET_MM, EXE_FILE, file, 0, 0, 0]);
}

/// Closes the files that are not for the new program: as many at a time as fit into the buffer.
fn close_files(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    const HERE: u64 = -100_i64 as u64;
    const FOLDER_CLOSE_ON_EXEC: u64 = 0o2_200_000;
    thread.process.space().write(buffer, b"/proc/self/fd\0")?;
    let how = [HERE, buffer, FOLDER_CLOSE_ON_EXEC, 0, 0, 0];
    let folder = match thread.call(number::OPENAT, how) {
        Ok(folder) => folder,
        // Without /proc nobody tells: all numbers are tried.
        Err(Errno::ENOENT) => return close_tried(thread, buffer),
        Err(error) => return Err(error),
    };
    loop {
        let read = thread.call(number::GETDENTS64, [folder, buffer, PAGE, 0, 0, 0])?;
        if read == 0 {
            break;
        }
        let mut entries = zeroed(read.min(PAGE) as usize)?;
        thread.process.space().read(buffer, &mut entries)?;
        let files = numbers(&entries).into_iter();
        // The place in the folder is the number of a file: that others are closed does not matter.
        close_those(thread, files.filter(|&file| file != folder))?;
    }
    thread
        .call(number::CLOSE, [folder, 0, 0, 0, 0, 0])
        .map(drop)
}

/// Closes those of some files that are not for the new program.
fn close_those(thread: &mut Thread, files: impl Iterator<Item = u64>) -> Result<(), Errno> {
    const CLOSE_ON_EXEC: u64 = 1;
    const GET_FLAGS: u64 = 1;
    let own = thread.process.pages().descriptor();
    for file in files.filter(|&file| file != own) {
        let flags = thread.call(number::FCNTL, [file, GET_FLAGS, 0, 0, 0, 0]);
        if flags.is_ok_and(|flags| flags & CLOSE_ON_EXEC != 0) {
            thread.call(number::CLOSE, [file, 0, 0, 0, 0, 0])?;
        }
    }
    Ok(())
}

/// The same without a list of them: poll(2) tells of many numbers at a time which are none.
fn close_tried(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    /// As many as a process may have (`fs.nr_open`), unless somebody has raised that.
    const MOST: u64 = 1 << 20;
    let mut first = 0;
    // A page of them; no more than the limit on files, which may be lower.
    let mut count = PAGE / size_of::<Entry>() as u64;
    while first < MOST {
        match open_among(thread, buffer, first..first + count) {
            Ok(open) => close_those(thread, open.into_iter())?,
            Err(Errno::EINVAL) if count > 1 => {
                count /= 2;
                continue;
            }
            Err(Errno::EINVAL) => close_those(thread, [first].into_iter())?,
            Err(error) => return Err(error),
        }
        first += count;
    }
    Ok(())
}

fn open_among(thread: &mut Thread, buffer: u64, numbers: Range<u64>) -> Result<Vec<u64>, Errno> {
    let mut entries: Vec<u8> = numbers.clone().flat_map(u64::to_le_bytes).collect();
    thread.process.space().write(buffer, &entries)?;
    let count = numbers.end - numbers.start;
    thread.call(number::POLL, [buffer, count, 0, 0, 0, 0])?;
    thread.process.space().read(buffer, &mut entries)?;
    let entries = entries.as_chunks().0.iter();
    let open = numbers.zip(entries).filter(|(_, entry)| is_open(entry));
    Ok(open.map(|(number, _)| number).collect())
}

/// `struct pollfd`: a descriptor, what it is looked at for, and what was found.
type Entry = [u8; 8];

/// What `struct pollfd` tells of a descriptor.
fn is_open(entry: &Entry) -> bool {
    /// `POLLNVAL`, in the last of its words.
    const NO_FILE: u8 = 0x20;
    entry[6] & NO_FILE == 0
}

/// The names of directory entries that are numbers (getdents64(2)).
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
    fn descriptors_are_numbers_in_a_folder() {
        let entries = [".", "..", "0", "17", "1048575"].map(entry).concat();
        assert_eq!(numbers(&entries), [0, 17, 1_048_575]);
        assert_eq!(numbers(&entries[..entries.len() - 1]), [0, 17]);
        assert_eq!(numbers(&[0xff; 40]), []);
        assert_eq!(numbers(&[0; 40]), []);
    }
}

//! Content of open files.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::files::{CURRENT, operation};

use crate::model::endpoint::{Window, Windows};
use crate::model::errno::Errno;
use crate::model::file_locks::Kind;
use crate::model::number as call;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::ask::Ask;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::mounted::target::Target;
use crate::syscall::vector::vector;
use crate::task::flow::Flow;
use crate::task::mounted::{self, Description};
use crate::task::thread::Thread;

type File = Arc<Description>;

fn window(address: u64, length: u64) -> Windows {
    Windows::from(Window { address, length })
}

/// Returns an offset that a program gives.
fn offset(offset: u64) -> Result<u64, Errno> {
    match offset.cast_signed() {
        0.. => Ok(offset),
        _ => Err(Errno::EINVAL),
    }
}

/// read(2).
pub(super) fn read(thread: Box<Thread>, file: File, [_, to, length, ..]: Arguments) -> Flow {
    transfer(
        thread,
        &file,
        operation::READ,
        Ok((CURRENT, window(to, length))),
    )
}

/// pread(2).
pub(super) fn read_at(thread: Box<Thread>, file: File, [_, to, length, at, ..]: Arguments) -> Flow {
    let range = offset(at).map(|at| (at, window(to, length)));
    transfer(thread, &file, operation::READ, range)
}

/// readv(2).
pub(super) fn read_vector(thread: Box<Thread>, file: File, [_, at, count, ..]: Arguments) -> Flow {
    let range = vector(&thread, at, count).map(|windows| (CURRENT, windows));
    transfer(thread, &file, operation::READ, range)
}

/// preadv(2), preadv2(2). The upper half of the offset is not used on x86-64.
pub(super) fn read_vector_at(thread: Box<Thread>, file: File, arguments: Arguments) -> Flow {
    let range = vector_at(&thread, arguments);
    transfer(thread, &file, operation::READ, range)
}

/// write(2).
pub(super) fn write(thread: Box<Thread>, file: File, [_, from, length, ..]: Arguments) -> Flow {
    transfer(
        thread,
        &file,
        operation::WRITE,
        Ok((CURRENT, window(from, length))),
    )
}

/// pwrite(2).
pub(super) fn write_at(
    thread: Box<Thread>,
    file: File,
    [_, from, length, at, ..]: Arguments,
) -> Flow {
    let range = offset(at).map(|at| (at, window(from, length)));
    transfer(thread, &file, operation::WRITE, range)
}

/// writev(2).
pub(super) fn write_vector(thread: Box<Thread>, file: File, [_, at, count, ..]: Arguments) -> Flow {
    let range = vector(&thread, at, count).map(|windows| (CURRENT, windows));
    transfer(thread, &file, operation::WRITE, range)
}

/// pwritev(2), pwritev2(2).
pub(super) fn write_vector_at(thread: Box<Thread>, file: File, arguments: Arguments) -> Flow {
    let range = vector_at(&thread, arguments);
    transfer(thread, &file, operation::WRITE, range)
}

/// Returns the result of a call that needs no server, as this kernel has the page, or the offset; `None` if it is none.
pub(in crate::syscall) fn cached(
    thread: &Thread,
    number: u64,
    [fd, first, second, at, ..]: Arguments,
) -> Option<u64> {
    let position = match number {
        call::READ => CURRENT,
        call::PREAD64 => offset(at).ok()?,
        call::LSEEK => CURRENT,
        _ => return None,
    };
    let files = mounted::files(&thread.process)?;
    let file = files.lock().file(fd)?;
    match number {
        call::LSEEK => file.content()?.seek(first, second),
        _ => read_cached(thread, &file, (position, &window(first, second))),
    }
}

/// Reads what this kernel has of a file: from an offset on, to these parts of the program's memory. `None` if the server has
/// to be asked.
fn read_cached(thread: &Thread, file: &File, (offset, windows): (u64, &Windows)) -> Option<u64> {
    let content = file.content().filter(|_| file.allows(Kind::Shared))?;
    content.read(offset, (&thread.process, windows))
}

/// Reads or writes a file: from an offset on, to or from these parts of the program's memory.
fn transfer(
    thread: Box<Thread>,
    file: &File,
    operation: u32,
    range: Result<(u64, Windows), Errno>,
) -> Flow {
    let (offset, windows) = match range {
        Ok(range) => range,
        Err(error) => return finish(thread, Err(error)),
    };
    if operation == operation::READ
        && let Some(done) = read_cached(&thread, file, (offset, &windows))
    {
        return finish(thread, Ok(done));
    }
    let ask = match offset {
        CURRENT => Ask::of_offset_of(file, operation, &[offset]),
        offset => Ask::of_file(file, operation, &[offset]),
    };
    let ask = match operation {
        operation::READ => ask.writes(windows),
        _ => ask.reads(windows),
    };
    ask.submit(thread)
}

/// Returns offset and vector of a call that has both. Of preadv2(2), -1 is the current offset.
fn vector_at(
    thread: &Thread,
    [_, at, count, position, ..]: Arguments,
) -> Result<(u64, Windows), Errno> {
    let position = match position {
        CURRENT => CURRENT,
        position => offset(position)?,
    };
    Ok((position, vector(thread, at, count)?))
}

/// lseek(2).
pub(super) fn seek(thread: Box<Thread>, file: File, [_, at, whence, ..]: Arguments) -> Flow {
    let found = file.content().and_then(|content| content.seek(at, whence));
    match found {
        Some(found) => finish(thread, Ok(found)),
        None => Ask::of_offset_of(&file, operation::SEEK, &[at, whence]).submit(thread),
    }
}

/// fsync(2), syncfs(2).
pub(super) fn sync(thread: Box<Thread>, file: File, _: Arguments) -> Flow {
    Ask::of_file(&file, operation::SYNC, &[0]).submit(thread)
}

/// fdatasync(2).
pub(super) fn sync_data(thread: Box<Thread>, file: File, _: Arguments) -> Flow {
    Ask::of_file(&file, operation::SYNC, &[1]).submit(thread)
}

/// ftruncate(2).
pub(super) fn truncate(thread: Box<Thread>, file: File, [_, length, ..]: Arguments) -> Flow {
    Ask::of_file_itself(&file, operation::TRUNCATE, &[length]).submit(thread)
}

/// truncate(2).
pub(super) fn truncate_path(
    thread: Box<Thread>,
    target: Target,
    [_, length, ..]: Arguments,
) -> Flow {
    Ask::of_path(&target, operation::TRUNCATE, &[length]).submit(thread)
}

/// fallocate(2).
pub(super) fn allocate(
    thread: Box<Thread>,
    file: File,
    [_, mode, at, length, ..]: Arguments,
) -> Flow {
    Ask::of_file(&file, operation::ALLOCATE, &[mode, at, length]).submit(thread)
}

/// Advice, which nothing follows from.
pub(super) fn nothing(thread: Box<Thread>, _: File, _: Arguments) -> Flow {
    finish(thread, Ok(0))
}

/// What the base's kernel would have to do with the file: programs read and write then.
pub(super) fn invalid(thread: Box<Thread>, _: File, _: Arguments) -> Flow {
    finish(thread, Err(Errno::EINVAL))
}

/// Extended attributes.
pub(super) fn unsupported(thread: Box<Thread>, _: File, _: Arguments) -> Flow {
    finish(thread, Err(Errno::EOPNOTSUPP))
}

/// copy_file_range(2): programs copy by themselves then.
pub(super) fn across(thread: Box<Thread>, _: File, _: Arguments) -> Flow {
    finish(thread, Err(Errno::EXDEV))
}

/// ioctl(2).
pub(super) fn no_terminal(thread: Box<Thread>, _: File, _: Arguments) -> Flow {
    finish(thread, Err(Errno::ENOTTY))
}

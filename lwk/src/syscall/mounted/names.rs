//! Making, removing and moving names.

use alloc::boxed::Box;

use insula_abi::files::{NONE, operation};

use crate::model::endpoint::Window;
use crate::model::errno::Errno;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::ask::Ask;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::mounted::target::{self, Target};
use crate::task::flow::Flow;
use crate::task::mounted;
use crate::task::thread::Thread;

/// `AT_REMOVEDIR`.
const REMOVE_DIRECTORY: u64 = 0x200;
/// Of new directories, all but the type.
const PERMISSIONS: u64 = 0o7777;

/// Deals with a call on two paths of the same server.
pub(super) type OnPaths = fn(Box<Thread>, Target, Target, Arguments) -> Flow;

/// mkdir(2).
pub(super) fn mkdir(thread: Box<Thread>, target: Target, [_, mode, ..]: Arguments) -> Flow {
    make_directory(thread, &target, mode)
}

/// mkdirat(2).
pub(super) fn mkdir_at(thread: Box<Thread>, target: Target, [_, _, mode, ..]: Arguments) -> Flow {
    make_directory(thread, &target, mode)
}

fn make_directory(thread: Box<Thread>, target: &Target, mode: u64) -> Flow {
    let umask = mounted::files(&thread.process).map_or(0, |files| files.lock().umask);
    Ask::of_path(target, operation::MKDIR, &[mode & PERMISSIONS & !umask]).submit(thread)
}

/// rmdir(2).
pub(super) fn rmdir(thread: Box<Thread>, target: Target, _: Arguments) -> Flow {
    Ask::of_path(&target, operation::UNLINK, &[REMOVE_DIRECTORY]).submit(thread)
}

/// unlink(2).
pub(super) fn unlink(thread: Box<Thread>, target: Target, _: Arguments) -> Flow {
    Ask::of_path(&target, operation::UNLINK, &[0]).submit(thread)
}

/// unlinkat(2).
pub(super) fn unlink_at(thread: Box<Thread>, target: Target, [_, _, flags, ..]: Arguments) -> Flow {
    match u64::from(flags as u32) {
        flags @ (0 | REMOVE_DIRECTORY) => {
            Ask::of_path(&target, operation::UNLINK, &[flags]).submit(thread)
        }
        _ => finish(thread, Err(Errno::EINVAL)),
    }
}

/// rename(2), renameat(2).
pub(super) fn rename(thread: Box<Thread>, from: Target, to: Target, _: Arguments) -> Flow {
    of_two(&from, &to, operation::RENAME, 0).submit(thread)
}

/// renameat2(2).
pub(super) fn rename_with(
    thread: Box<Thread>,
    from: Target,
    to: Target,
    [_, _, _, _, flags, _]: Arguments,
) -> Flow {
    of_two(&from, &to, operation::RENAME, flags).submit(thread)
}

/// link(2).
pub(super) fn link(thread: Box<Thread>, from: Target, to: Target, _: Arguments) -> Flow {
    of_two(&from, &to, operation::LINK, 0).submit(thread)
}

/// linkat(2).
pub(super) fn link_at(
    thread: Box<Thread>,
    from: Target,
    to: Target,
    [_, _, _, _, flags, _]: Arguments,
) -> Flow {
    of_two(&from, &to, operation::LINK, flags).submit(thread)
}

fn of_two(from: &Target, to: &Target, operation: u32, flags: u64) -> Ask {
    let second = to
        .directory
        .as_ref()
        .map_or(NONE, |directory| directory.handle);
    Ask::of_path(from, operation, &[second, flags]).path(&to.path)
}

/// symlink(2), symlinkat(2).
pub(super) fn symlink(thread: Box<Thread>, link: Target, [to, ..]: Arguments) -> Flow {
    match target::read(&thread, to) {
        Ok(to) => Ask::of_path(&link, operation::SYMLINK, &[])
            .path(&to)
            .submit(thread),
        Err(error) => finish(thread, Err(error)),
    }
}

/// readlink(2).
pub(super) fn read_link(
    thread: Box<Thread>,
    target: Target,
    [_, to, length, ..]: Arguments,
) -> Flow {
    read_link_to(thread, &target, to, length)
}

/// readlinkat(2).
pub(super) fn read_link_at(
    thread: Box<Thread>,
    target: Target,
    [_, _, to, length, ..]: Arguments,
) -> Flow {
    read_link_to(thread, &target, to, length)
}

fn read_link_to(thread: Box<Thread>, target: &Target, to: u64, length: u64) -> Flow {
    let length = u64::from(length as u32);
    match length.cast_signed() as i32 {
        1.. => Ask::of_path(target, operation::READLINK, &[])
            .writes(Window {
                address: to,
                length,
            })
            .submit(thread),
        _ => finish(thread, Err(Errno::EINVAL)),
    }
}

/// mknod(2), chroot(2): servers have files, directories and symbolic links alone, and are no place for a
/// process to be in.
pub(super) fn forbidden(thread: Box<Thread>, _: Target, _: Arguments) -> Flow {
    finish(thread, Err(Errno::EPERM))
}

/// What servers do not have, as other file systems: extended attributes, inotify(7).
pub(super) fn unsupported(thread: Box<Thread>, _: Target, _: Arguments) -> Flow {
    finish(thread, Err(Errno::EOPNOTSUPP))
}

/// execve(2): as of a file system without execution.
pub(super) fn denied(thread: Box<Thread>, _: Target, _: Arguments) -> Flow {
    finish(thread, Err(Errno::EACCES))
}

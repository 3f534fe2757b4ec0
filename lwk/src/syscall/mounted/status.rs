//! Status of files: reading and changing it.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::files::operation;

use crate::model::endpoint::Window;
use crate::model::errno::Errno;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::ask::Ask;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::mounted::target::Target;
use crate::task::flow::Flow;
use crate::task::mounted::Description;
use crate::task::thread::Thread;

type File = Arc<Description>;

/// Sizes of the structures, in bytes.
const STAT: u64 = 144;
const STATX: u64 = 256;
const STATFS: u64 = 120;
const TIMES: u64 = 32;
/// `AT_SYMLINK_NOFOLLOW`.
const NO_FOLLOW: u64 = 0x100;

/// stat(2).
pub(super) fn stat(thread: Box<Thread>, target: Target, [_, to, ..]: Arguments) -> Flow {
    let ask = Ask::of_path(&target, operation::STAT, &[0]);
    ask.writes_at(to, STAT).submit(thread)
}

/// lstat(2).
pub(super) fn link_stat(thread: Box<Thread>, target: Target, [_, to, ..]: Arguments) -> Flow {
    let ask = Ask::of_path(&target, operation::STAT, &[NO_FOLLOW]);
    ask.writes_at(to, STAT).submit(thread)
}

/// fstat(2).
pub(super) fn file_stat(thread: Box<Thread>, file: File, [_, to, ..]: Arguments) -> Flow {
    let ask = Ask::of_file_itself(&file, operation::STAT, &[0]);
    ask.writes_at(to, STAT).submit(thread)
}

/// fstatat(2).
pub(super) fn stat_at(
    thread: Box<Thread>,
    target: Target,
    [_, _, to, flags, ..]: Arguments,
) -> Flow {
    let ask = Ask::of_path(&target, operation::STAT, &[flags]);
    ask.writes_at(to, STAT).submit(thread)
}

/// fstatat(2) of a descriptor.
pub(super) fn file_stat_at(thread: Box<Thread>, file: File, [_, _, to, ..]: Arguments) -> Flow {
    let ask = Ask::of_file_itself(&file, operation::STAT, &[0]);
    ask.writes_at(to, STAT).submit(thread)
}

/// statx(2).
pub(super) fn statx(
    thread: Box<Thread>,
    target: Target,
    [_, _, flags, mask, to, _]: Arguments,
) -> Flow {
    let ask = Ask::of_path(&target, operation::STATX, &[flags, mask]);
    ask.writes_at(to, STATX).submit(thread)
}

/// statx(2) of a descriptor.
pub(super) fn file_statx(
    thread: Box<Thread>,
    file: File,
    [_, _, _, mask, to, _]: Arguments,
) -> Flow {
    let ask = Ask::of_file_itself(&file, operation::STATX, &[0, mask]);
    ask.writes_at(to, STATX).submit(thread)
}

/// access(2).
pub(super) fn access(thread: Box<Thread>, target: Target, [_, mode, ..]: Arguments) -> Flow {
    Ask::of_path(&target, operation::ACCESS, &[mode, 0]).submit(thread)
}

/// The system call behind faccessat(3), which has no flags.
pub(super) fn access_at(thread: Box<Thread>, target: Target, [_, _, mode, ..]: Arguments) -> Flow {
    Ask::of_path(&target, operation::ACCESS, &[mode, 0]).submit(thread)
}

/// faccessat2(2).
pub(super) fn access_at_with(
    thread: Box<Thread>,
    target: Target,
    [_, _, mode, flags, ..]: Arguments,
) -> Flow {
    Ask::of_path(&target, operation::ACCESS, &[mode, flags]).submit(thread)
}

/// statfs(2).
pub(super) fn statfs(thread: Box<Thread>, target: Target, [_, to, ..]: Arguments) -> Flow {
    let ask = Ask::of_path(&target, operation::STATFS, &[]);
    ask.writes_at(to, STATFS).submit(thread)
}

/// fstatfs(2).
pub(super) fn file_statfs(thread: Box<Thread>, file: File, [_, to, ..]: Arguments) -> Flow {
    let ask = Ask::of_file_itself(&file, operation::STATFS, &[]);
    ask.writes_at(to, STATFS).submit(thread)
}

/// chmod(2).
pub(super) fn chmod(thread: Box<Thread>, target: Target, [_, mode, ..]: Arguments) -> Flow {
    Ask::of_path(&target, operation::CHMOD, &[mode, 0]).submit(thread)
}

/// fchmod(2).
pub(super) fn file_chmod(thread: Box<Thread>, file: File, [_, mode, ..]: Arguments) -> Flow {
    Ask::of_file_itself(&file, operation::CHMOD, &[mode, 0]).submit(thread)
}

/// The system call behind fchmodat(3), which has no flags.
pub(super) fn chmod_at(thread: Box<Thread>, target: Target, [_, _, mode, ..]: Arguments) -> Flow {
    Ask::of_path(&target, operation::CHMOD, &[mode, 0]).submit(thread)
}

/// fchmodat2(2). Links have no permissions.
pub(super) fn chmod_at_with(
    thread: Box<Thread>,
    target: Target,
    [_, _, mode, flags, ..]: Arguments,
) -> Flow {
    match flags & NO_FOLLOW {
        0 => Ask::of_path(&target, operation::CHMOD, &[mode, flags]).submit(thread),
        _ => finish(thread, Err(Errno::EOPNOTSUPP)),
    }
}

/// chown(2).
pub(super) fn chown(thread: Box<Thread>, target: Target, [_, user, group, ..]: Arguments) -> Flow {
    Ask::of_path(&target, operation::CHOWN, &[user, group, 0]).submit(thread)
}

/// lchown(2).
pub(super) fn link_chown(
    thread: Box<Thread>,
    target: Target,
    [_, user, group, ..]: Arguments,
) -> Flow {
    Ask::of_path(&target, operation::CHOWN, &[user, group, NO_FOLLOW]).submit(thread)
}

/// fchown(2).
pub(super) fn file_chown(thread: Box<Thread>, file: File, [_, user, group, ..]: Arguments) -> Flow {
    Ask::of_file_itself(&file, operation::CHOWN, &[user, group, 0]).submit(thread)
}

/// fchownat(2).
pub(super) fn chown_at(
    thread: Box<Thread>,
    target: Target,
    [_, _, user, group, flags, _]: Arguments,
) -> Flow {
    Ask::of_path(&target, operation::CHOWN, &[user, group, flags]).submit(thread)
}

/// fchownat(2) of a descriptor.
pub(super) fn file_chown_at(
    thread: Box<Thread>,
    file: File,
    [_, _, user, group, ..]: Arguments,
) -> Flow {
    Ask::of_file_itself(&file, operation::CHOWN, &[user, group, 0]).submit(thread)
}

/// utime(2): two times in seconds.
pub(super) fn utime(thread: Box<Thread>, target: Target, [_, at, ..]: Arguments) -> Flow {
    let mut bytes = [0; 16];
    set_times(thread, &target, at, &mut bytes, |bytes| {
        let [accessed, modified] = [0, 8].map(|at| word(bytes, at));
        Ok([accessed, 0, modified, 0])
    })
}

/// utimes(2): two of `struct timeval`.
pub(super) fn utimes(thread: Box<Thread>, target: Target, [_, at, ..]: Arguments) -> Flow {
    set_times(thread, &target, at, &mut [0; TIMES as usize], timevals)
}

/// futimesat(2).
pub(super) fn utimes_at(thread: Box<Thread>, target: Target, [_, _, at, ..]: Arguments) -> Flow {
    set_times(thread, &target, at, &mut [0; TIMES as usize], timevals)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]))
}

/// Converts two of `struct timeval` to two of `struct timespec`.
fn timevals(bytes: &[u8]) -> Result<[u64; 4], Errno> {
    const NS_PER_US: u64 = 1000;
    const US_PER_S: u64 = 1_000_000;
    let [accessed, accessed_us, modified, modified_us] = [0, 8, 16, 24].map(|at| word(bytes, at));
    match accessed_us < US_PER_S && modified_us < US_PER_S {
        true => Ok([
            accessed,
            accessed_us * NS_PER_US,
            modified,
            modified_us * NS_PER_US,
        ]),
        false => Err(Errno::EINVAL),
    }
}

/// Sets times that a program gives in an older structure; at address 0, those of now.
fn set_times(
    thread: Box<Thread>,
    target: &Target,
    at: u64,
    bytes: &mut [u8],
    convert: impl FnOnce(&[u8]) -> Result<[u64; 4], Errno>,
) -> Flow {
    if at == 0 {
        return Ask::of_path(target, operation::UTIMES, &[0, 0]).submit(thread);
    }
    let read = thread.process.space().read(at, bytes);
    match read.and_then(|()| convert(bytes)) {
        Ok(times) => Ask::of_path(target, operation::UTIMES, &[0, 1])
            .bytes(&times.map(u64::to_le_bytes).concat())
            .submit(thread),
        Err(error) => finish(thread, Err(error)),
    }
}

/// utimensat(2).
pub(super) fn utimens(
    thread: Box<Thread>,
    target: Target,
    [_, _, at, flags, ..]: Arguments,
) -> Flow {
    let ask = Ask::of_path(&target, operation::UTIMES, &[flags, u64::from(at != 0)]);
    with_times(ask, at).submit(thread)
}

/// utimensat(2) of a descriptor.
pub(super) fn file_utimens(thread: Box<Thread>, file: File, [_, _, at, ..]: Arguments) -> Flow {
    let ask = Ask::of_file_itself(&file, operation::UTIMES, &[0, u64::from(at != 0)]);
    with_times(ask, at).submit(thread)
}

fn with_times(ask: Ask, at: u64) -> Ask {
    match at {
        0 => ask,
        address => ask.reads(Window {
            address,
            length: TIMES,
        }),
    }
}

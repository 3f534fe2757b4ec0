//! Arguments of clone(2) and clone3(2).

use crate::model::errno::Errno;
use crate::model::signals::set::SIGNALS;
use crate::task::thread::Thread;

/// `CLONE_SETTLS` and others, flags of clone(2).
pub(super) const CLONE_SETTLS: u64 = 0x8_0000;
pub(super) const CLONE_PARENT_SETTID: u64 = 0x10_0000;
pub(super) const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
pub(super) const CLONE_CHILD_SETTID: u64 = 0x100_0000;
pub(super) const CLONE_THREAD: u64 = 0x1_0000;

/// Arguments of clone(2) and clone3(2).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CloneArguments {
    pub(super) flags: u64,
    pub(super) exit_signal: u64,
    /// Address at which the pidfd of the child is stored.
    pub(super) pidfd: u64,
    pub(super) parent_tid: u64,
    pub(super) child_tid: u64,
    /// Initial stack pointer; 0 for the caller's.
    pub(super) stack: u64,
    pub(super) tls: u64,
}

/// Reads the `struct clone_args` of clone3(2).
///
/// # Errors
/// As of clone3(2).
pub(super) fn read_clone_args(
    thread: &Thread,
    address: u64,
    size: u64,
) -> Result<CloneArguments, Errno> {
    /// Size of the first and of the newest version of `struct clone_args`, in bytes.
    const SIZE_MIN: u64 = 64;
    const SIZE: usize = 88;
    if size < SIZE_MIN {
        return Err(Errno::EINVAL);
    }
    if size > SIZE as u64 {
        return Err(Errno::E2BIG);
    }
    let mut bytes = [0; SIZE];
    let given = &mut bytes[..size as usize];
    thread.process.space().read(address, given)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
    let [flags, pidfd, child_tid, parent_tid] = [0, 1, 2, 3].map(word);
    let [exit_signal, stack, stack_size, tls] = [4, 5, 6, 7].map(word);
    if exit_signal > u64::from(SIGNALS) {
        return Err(Errno::EINVAL);
    }
    Ok(CloneArguments {
        flags,
        exit_signal,
        pidfd,
        parent_tid,
        child_tid,
        stack: stack.checked_add(stack_size).ok_or(Errno::EINVAL)?,
        tls,
    })
}

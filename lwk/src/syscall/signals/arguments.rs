//! Arguments of signal calls.

use crate::model::errno::Errno;
use crate::model::signals::set::{SIGNALS, Set};
use crate::task::thread::Thread;

/// Size of a signal set in the program's memory, in bytes.
pub(crate) const SET_SIZE: u64 = 8;

/// Checks the number of a signal.
///
/// # Errors
/// [`Errno::EINVAL`].
pub(super) fn signal_of(number: u64) -> Result<u32, Errno> {
    let signal = number as u32;
    match signal {
        1..=SIGNALS => Ok(signal),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads a signal set.
///
/// # Errors
/// [`Errno::EFAULT`].
pub(crate) fn read_set(thread: &mut Thread, address: u64) -> Result<Set, Errno> {
    let mut bytes = [0; 8];
    thread.process.space().read(address, &mut bytes)?;
    Ok(Set::from_le_bytes(bytes))
}

/// Checks the size of a signal set.
///
/// # Errors
/// [`Errno::EINVAL`].
pub(crate) fn checked_size(size: u64) -> Result<(), Errno> {
    match size {
        SET_SIZE => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

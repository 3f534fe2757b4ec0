//! io_uring: the base executes it, and its rings are base mappings. This kernel handles what
//! io_uring_enter(2) says of signals and time, which may be in a structure.
//!
//! The base pins no memory of a program for good: what would need that is refused as it is for memory
//! of files, or as by a Linux that does not have it.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number::{IO_URING_ENTER, IO_URING_REGISTER, IO_URING_SETUP};
use crate::syscall::delegate::{delegate, delegate_replacing, finish};
use crate::syscall::signals::arguments::{checked_size, read_set};
use crate::syscall::signals::mask::block_during_call;
use crate::syscall::timeouts;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// `IORING_ENTER_GETEVENTS`: it waits, with the rest of its arguments.
const GET_EVENTS: u64 = 1 << 0;
/// `IORING_ENTER_EXT_ARG`: these are in a structure.
const STRUCTURE: u64 = 1 << 3;
/// `IORING_ENTER_ABS_TIMER`: the timeout is a point in time.
const ABSOLUTE: u64 = 1 << 5;

/// Index of the argument that is the mask's address, or the structure's.
const MASK: usize = 4;

/// `struct io_uring_getevents_arg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    /// Address of the signal mask; 0 for none.
    mask: u64,
    /// Size of the mask in the lower half; in the upper one, what is the base's alone.
    sizes: u64,
    /// Address of the timeout; 0 for none.
    timeout: u64,
}

impl Waiting {
    /// Its size, in bytes.
    const SIZE: usize = 24;

    fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            mask: word(0),
            sizes: word(8),
            timeout: word(16),
        }
    }
}

/// io_uring_setup(2). Rings in the program's memory are unknown here, as before Linux 6.5.
pub(super) fn set_up(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    /// Offset of the flags in `struct io_uring_params`, and `IORING_SETUP_NO_MMAP` in them.
    const FLAGS: u64 = 8;
    const IN_PROGRAM_MEMORY: u32 = 1 << 14;
    let mut flags = [0; 4];
    let read = thread
        .process
        .space()
        .read(a[1].wrapping_add(FLAGS), &mut flags);
    match read {
        Ok(()) if u32::from_le_bytes(flags) & IN_PROGRAM_MEMORY != 0 => {
            finish(thread, Err(Errno::EINVAL))
        }
        Ok(()) => delegate(thread, IO_URING_SETUP, a),
        Err(error) => finish(thread, Err(error)),
    }
}

/// io_uring_register(2).
pub(super) fn register(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    /// `IORING_REGISTER_BUFFERS`, `_BUFFERS2`, `_BUFFERS_UPDATE`, `_PBUF_RING`.
    const PINNING: [u64; 4] = [0, 15, 16, 22];
    if !PINNING.contains(&a[1]) {
        return delegate(thread, IO_URING_REGISTER, a);
    }
    Flow::handler(thread, move |mut thread| async move {
        let mut result = thread.remote_syscall(IO_URING_REGISTER, a).await;
        let is_given = || thread.process.space().read(a[2], &mut [0; 16]) != Err(Errno::EFAULT);
        // Since Linux 6.5 it does not say what it cannot do with the memory.
        if result == Err(Errno::EFAULT) && is_given() {
            result = Err(Errno::EOPNOTSUPP);
        }
        finish(thread, result)
    })
}

/// io_uring_enter(2).
pub(super) fn enter(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [.., flags, at, size] = a;
    let replaced = if flags & GET_EVENTS == 0 || at == 0 {
        Ok(None)
    } else if flags & STRUCTURE == 0 {
        block(&mut thread, at, size).map(|()| Some(0))
    } else if size == Waiting::SIZE as u64 {
        prepare(&mut thread, a)
    } else {
        // The base says what is wrong.
        Ok(None)
    };
    match replaced {
        Ok(None) => delegate(thread, IO_URING_ENTER, a),
        Ok(Some(mask)) => delegate_replacing(thread, IO_URING_ENTER, a, (MASK, mask)),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Blocks the signals of a mask during the call.
fn block(thread: &mut Thread, mask: u64, size: u64) -> Result<(), Errno> {
    checked_size(size)?;
    let set = read_set(thread, mask)?;
    block_during_call(thread, set);
    Ok(())
}

/// Blocks the signals of the structure. Returns the address of another if the base is to get one:
/// without them, or with the time that is left for a restarted call.
fn prepare(thread: &mut Thread, a: [u64; 6]) -> Result<Option<u64>, Errno> {
    let mut bytes = [0; Waiting::SIZE];
    thread.process.space().read(a[MASK], &mut bytes)?;
    let waiting = Waiting::from_bytes(&bytes);
    if waiting.mask != 0 {
        block(thread, waiting.mask, u64::from(waiting.sizes as u32))?;
    }
    let left = match waiting.timeout {
        0 => None,
        _ if a[3] & ABSOLUTE != 0 => None,
        address => timeouts::remaining_time(thread, address),
    };
    if waiting.mask == 0 && left.is_none() {
        return Ok(None);
    }
    let time = left.unwrap_or_default();
    let place = thread.put_scratch(&[0; 5]).ok_or(Errno::EFAULT)?;
    let timeout = match left {
        Some(_) => place + Waiting::SIZE as u64,
        None => waiting.timeout,
    };
    let words = [0, waiting.sizes, timeout, time[0], time[1]];
    thread.put_scratch(&words).map(Some).ok_or(Errno::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_read_word_by_word() {
        let words: [u64; 3] = [0x1234, 7 << 32 | 8, 0x5678];
        let mut bytes = [0; Waiting::SIZE];
        for (place, word) in bytes.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let wanted = Waiting {
            mask: 0x1234,
            sizes: 7 << 32 | 8,
            timeout: 0x5678,
        };
        assert_eq!(Waiting::from_bytes(&bytes), wanted);
    }
}

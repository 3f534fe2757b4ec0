//! Vectors of parts of a program's memory (readv(2)).

use alloc::vec::Vec;

use crate::hw::memory::room::has_room;
use crate::model::endpoint::{Window, Windows};
use crate::model::errno::Errno;
use crate::task::thread::Thread;

/// Reads a vector of `struct iovec`.
pub(in crate::syscall) fn vector(thread: &Thread, at: u64, count: u64) -> Result<Windows, Errno> {
    /// `IOV_MAX`.
    const MOST: u64 = 1024;
    const SIZE: usize = 16;
    if count > MOST {
        return Err(Errno::EINVAL);
    }
    has_room(2 * MOST * SIZE as u64)?;
    let mut windows = Vec::with_capacity(count as usize);
    let mut space = thread.process.space();
    for index in 0..count {
        let mut bytes = [0; SIZE];
        space.read(at.wrapping_add(index * SIZE as u64), &mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        windows.push(Window {
            address: word(0),
            length: length(word(8))?,
        });
    }
    let windows = Windows {
        first: Window::default(),
        more: windows,
    };
    match windows.length() > i64::MAX as u64 {
        true => Err(Errno::EINVAL),
        false => Ok(windows),
    }
}

/// Returns a length, which is signed.
fn length(length: u64) -> Result<u64, Errno> {
    match length.cast_signed() {
        0.. => Ok(length),
        _ => Err(Errno::EINVAL),
    }
}

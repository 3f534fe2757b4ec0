//! Addresses in a program's memory.

use crate::model::errno::Errno;
use crate::model::socket_address::{self, SIZE_MAX};
use crate::task::thread::Thread;

/// Reads an address of a length.
pub(super) fn read(thread: &Thread, at: u64, length: u64) -> Result<u64, Errno> {
    let length = u64::from(length as u32);
    if length > SIZE_MAX {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; SIZE_MAX as usize];
    let bytes = &mut bytes[..length as usize];
    thread.process.space().read(at, bytes)?;
    socket_address::read(bytes)
}

/// Writes an address, as far as there is room for it, and its length where the room's was.
pub(super) fn write(thread: &Thread, address: u64, at: u64, length_at: u64) -> Result<(), Errno> {
    if at == 0 {
        return Ok(());
    }
    let mut room = [0; 4];
    let mut space = thread.process.space();
    space.read(length_at, &mut room)?;
    let room = usize::try_from(i32::from_le_bytes(room)).map_err(|_| Errno::EINVAL)?;
    let bytes = socket_address::to_bytes(address);
    space.write(at, &bytes[..room.min(bytes.len())])?;
    space.write(length_at, &(bytes.len() as u32).to_le_bytes())
}

//! The memory map: e820, also one that is too long for `boot_params`.

use alloc::vec::Vec;

use super::bytes::{OutOfPlace, Reader, u32_in, u64_in};

/// Offsets in `struct boot_params`, and of a `struct setup_data`, whose data follow.
const COUNT: u64 = 0x1e8;
const SETUP_DATA: u64 = 0x250;
const TABLE: u64 = 0x2d0;
const SETUP_DATA_SIZE: u64 = 16;
/// Entries in `boot_params` at most, and their size.
const COUNT_MAX: u8 = 128;
const ENTRY_SIZE: usize = 20;
/// Type of the setup data that is a continued memory map.
const E820_MORE: u32 = 1;
/// Pieces of setup data that are looked at.
const SETUP_DATA_MAX: usize = 64;
/// Type of free memory.
const RAM: u32 = 1;

/// A stretch of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    /// Physical address of its first byte.
    pub start: u64,
    /// Its bytes.
    pub size: u64,
}

impl Stretch {
    /// The address after its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// Free and reserved stretches, ascending.
pub(super) fn read(
    reader: &Reader,
    boot_params: u64,
) -> Result<(Vec<Stretch>, Vec<Stretch>), OutOfPlace> {
    let count = reader.u8(boot_params + COUNT)?.min(COUNT_MAX);
    let mut table = reader.bytes(boot_params + TABLE, usize::from(count) * ENTRY_SIZE)?;
    let mut next = reader.u64(boot_params + SETUP_DATA)?;
    for _ in 0..SETUP_DATA_MAX {
        if next == 0 {
            break;
        }
        if reader.u32(next + 8)? == E820_MORE {
            let size = reader.u32(next + 12)? as usize;
            table.extend(reader.bytes(next + SETUP_DATA_SIZE, size)?);
        }
        next = reader.u64(next)?;
    }
    let (mut free, mut reserved) = (Vec::new(), Vec::new());
    for entry in table.chunks_exact(ENTRY_SIZE) {
        let stretch = Stretch {
            start: u64_in(entry, 0),
            size: u64_in(entry, 8),
        };
        match u32_in(entry, 16) {
            RAM => free.push(stretch),
            _ => reserved.push(stretch),
        }
    }
    free.sort_unstable();
    reserved.sort_unstable();
    Ok((free, reserved))
}

//! The e820 memory map, including the part that does not fit into `boot_params`.

use alloc::vec::Vec;

use crate::hw::boot_info::bytes::{BadAddress, Reader, u32_in, u64_in};

/// Offsets in `struct boot_params`, and the size of the header of `struct setup_data`.
const COUNT: u64 = 0x1e8;
const SETUP_DATA: u64 = 0x250;
const TABLE: u64 = 0x2d0;
const SETUP_DATA_SIZE: u64 = 16;
/// Maximum number of entries in `boot_params`, and their size.
const COUNT_MAX: u8 = 128;
const ENTRY_SIZE: usize = 20;
/// Type of setup data that continues the memory map.
const E820_MORE: u32 = 1;
/// Limit on the number of setup data.
const SETUP_DATA_MAX: usize = 64;
/// Type of usable memory.
const RAM: u32 = 1;

/// A range of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryRange {
    /// Physical address of its first byte.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
}

impl MemoryRange {
    /// Returns the address after its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// Returns the free and the reserved ranges, in ascending order.
pub(super) fn read(
    reader: &Reader,
    boot_params: u64,
) -> Result<(Vec<MemoryRange>, Vec<MemoryRange>), BadAddress> {
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
        let range = MemoryRange {
            start: u64_in(entry, 0),
            size: u64_in(entry, 8),
        };
        match u32_in(entry, 16) {
            RAM => free.push(range),
            _ => reserved.push(range),
        }
    }
    free.sort_unstable();
    reserved.sort_unstable();
    Ok((free, reserved))
}

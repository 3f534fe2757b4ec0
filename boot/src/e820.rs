//! The node's memory map, in the e820 format.
//!
//! Source: ACPI specification 6.5, section 15 "System Address Map Interfaces"; the kernel's
//! `struct boot_e820_entry` in arch/x86/include/uapi/asm/setup_data.h.

use crate::chunk::{Chunk, Memory};

/// Type of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum E820Type {
    /// Usable memory.
    Ram = 1,
    /// Memory that the kernel must not use.
    Reserved = 2,
}

/// A range of the node's memory map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct E820Entry {
    /// Physical address of the first byte.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Its type.
    pub kind: E820Type,
}

impl E820Entry {
    /// Size of an entry in bytes.
    pub(crate) const SIZE: usize = 20;

    /// The entry's bytes in memory.
    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes
    }
}

/// Maximum number of entries for `memory`: each of the two reserved ranges adds at most two.
pub(crate) fn entries_max(memory: &Memory) -> usize {
    memory.all().count() + 4
}

/// The map of all `memory`, with the ranges in `reserved` reserved.
///
/// `reserved` is ascending, and each range lies in one chunk.
pub(crate) fn map(memory: &Memory, reserved: &[Chunk]) -> Vec<E820Entry> {
    let mut entries = Vec::with_capacity(entries_max(memory));
    let mut add = |range: Chunk, kind| {
        if range.size > 0 {
            entries.push(E820Entry {
                start: range.start,
                size: range.size,
                kind,
            });
        }
    };
    for chunk in memory.all() {
        let mut next = chunk.start;
        let within_chunk = |hole: &&Chunk| chunk.start <= hole.start && hole.start < chunk.end();
        for hole in reserved.iter().filter(within_chunk) {
            add(Chunk::between(next, hole.start), E820Type::Ram);
            add(*hole, E820Type::Reserved);
            next = hole.end();
        }
        add(Chunk::between(next, chunk.end()), E820Type::Ram);
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_around_reserved_ranges() {
        let chunk = |start, size| Chunk { start, size };
        let memory = Memory::of(&[chunk(0x10000, 0x9000), chunk(0x200000, 0x200000)], &[])
            .expect("good memory");
        let entries = map(&memory, &[chunk(0x17000, 0x2000), chunk(0x300000, 0x1000)]);
        let short: Vec<_> = entries.iter().map(|e| (e.start, e.size, e.kind)).collect();
        assert_eq!(
            short,
            [
                (0x10000, 0x7000, E820Type::Ram),
                (0x17000, 0x2000, E820Type::Reserved),
                (0x200000, 0x100000, E820Type::Ram),
                (0x300000, 0x1000, E820Type::Reserved),
                (0x301000, 0xff000, E820Type::Ram),
            ]
        );
    }

    #[test]
    fn entry_bytes() {
        let entry = E820Entry {
            start: 0x1_0000_0000,
            size: 0x20_0000,
            kind: E820Type::Reserved,
        };
        let expected = [
            0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 2, 0, 0, 0,
        ];
        assert_eq!(entry.to_bytes(), expected);
    }
}

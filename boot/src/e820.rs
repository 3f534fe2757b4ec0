//! The node's memory map, in the form that BIOS call 0xE820 made common.
//!
//! Source: ACPI specification 6.5, section 15 "System Address Map Interfaces"; the kernel's
//! `struct boot_e820_entry` in arch/x86/include/uapi/asm/setup_data.h.

use crate::chunk::{Chunk, Memory};

/// What a stretch of the map is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum E820Type {
    /// The kernel's to use.
    Ram = 1,
    /// Memory that the kernel must not use.
    Reserved = 2,
}

/// A stretch of the node's memory map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct E820Entry {
    /// Its first byte's physical address.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
    /// What it is.
    pub kind: E820Type,
}

impl E820Entry {
    /// Size of an entry in the map, in bytes.
    pub(crate) const SIZE: usize = 20;

    /// The entry as it lies in memory.
    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes
    }
}

/// Most entries that the map of a node with `memory` can have: each of two reserved stretches adds at most two.
pub(crate) fn entries_max(memory: &Memory) -> usize {
    memory.all().count() + 4
}

/// The map of a node with `memory`: all of it, with the stretches in `reserved` withheld from the kernel.
///
/// `reserved` is ascending, and each of its stretches lies in one chunk.
pub(crate) fn map(memory: &Memory, reserved: &[Chunk]) -> Vec<E820Entry> {
    let mut entries = Vec::with_capacity(entries_max(memory));
    let mut add = |stretch: Chunk, kind| {
        if stretch.size > 0 {
            entries.push(E820Entry {
                start: stretch.start,
                size: stretch.size,
                kind,
            });
        }
    };
    for chunk in memory.all() {
        let mut next = chunk.start;
        let inside = |hole: &&Chunk| chunk.start <= hole.start && hole.start < chunk.end();
        for hole in reserved.iter().filter(inside) {
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
    fn splits_around_what_is_reserved() {
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

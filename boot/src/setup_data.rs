//! Setup data: a list of what a loader tells a Linux kernel beyond the page of `boot_params`.
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst ("setup_data"), arch/x86/include/uapi/asm/setup_data.h, and
//! `parse_setup_data()` in arch/x86/kernel/setup.c: the kernel overwrites the random seed with zeros once it has it.

use crate::e820::E820Entry;

/// `SETUP_E820_EXT`: continues the memory map.
const SETUP_E820_EXT: u32 = 1;
/// `SETUP_RNG_SEED`: random bytes, which kernels from 6.0 on take as such.
const SETUP_RNG_SEED: u32 = 9;
/// Size of the head of `struct setup_data`, in bytes: next, type, length.
const HEAD: usize = 16;
/// What the address of each is a multiple of.
const ALIGNMENT: usize = 16;

/// What is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetupData<'a> {
    /// Nothing if empty.
    pub(crate) random_seed: &'a [u8],
    /// Those entries of the memory map for which the page has no room.
    pub(crate) e820: &'a [E820Entry],
}

impl SetupData<'_> {
    /// Size in bytes of what [`Self::to_bytes`] makes of a seed of so many bytes and so many entries.
    pub(crate) fn size(random_seed: usize, entries: usize) -> u64 {
        let one = |size: usize| match size {
            0 => 0,
            size => (HEAD + size).next_multiple_of(ALIGNMENT),
        };
        (one(random_seed) + one(entries * E820Entry::SIZE)) as u64
    }

    /// The list's bytes, to lie at `address`, where it begins; empty if there is nothing to tell.
    pub(crate) fn to_bytes(self, address: u64) -> Vec<u8> {
        let e820: Vec<u8> = self
            .e820
            .iter()
            .flat_map(|entry| entry.to_bytes())
            .collect();
        let all = [(SETUP_RNG_SEED, self.random_seed), (SETUP_E820_EXT, &e820)];
        let mut left = all
            .iter()
            .filter(|(_, content)| !content.is_empty())
            .peekable();
        let mut bytes = Vec::new();
        while let Some((kind, content)) = left.next() {
            let end = (bytes.len() + HEAD + content.len()).next_multiple_of(ALIGNMENT);
            let next = left.peek().map_or(0, |_| address + end as u64);
            bytes.extend_from_slice(&next.to_le_bytes());
            bytes.extend_from_slice(&kind.to_le_bytes());
            bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
            bytes.extend_from_slice(content);
            bytes.resize(end, 0);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::E820Type;

    const ENTRY: E820Entry = E820Entry {
        start: 0x10000,
        size: 0x1000,
        kind: E820Type::Ram,
    };

    #[test]
    fn each_leads_to_the_next() {
        let data = SetupData {
            random_seed: &[7; 20],
            e820: &[ENTRY],
        };
        let bytes = data.to_bytes(0x1000);
        assert_eq!(bytes.len() as u64, SetupData::size(20, 1));
        assert_eq!(
            bytes[..16],
            [0x30, 0x10, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 20, 0, 0, 0]
        );
        assert_eq!(bytes[16..36], [7; 20]);
        assert_eq!(
            bytes[48..64],
            [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 20, 0, 0, 0]
        );
        assert_eq!(bytes[64..84], ENTRY.to_bytes());
    }

    #[test]
    fn nothing_is_no_list() {
        let none = SetupData {
            random_seed: &[],
            e820: &[],
        };
        assert!(none.to_bytes(0x1000).is_empty());
        assert_eq!(SetupData::size(0, 0), 0);
    }
}

//! Setup data: a list that extends `boot_params`.
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst ("setup_data"),
//! arch/x86/include/uapi/asm/setup_data.h, and `parse_setup_data()` in arch/x86/kernel/setup.c: the
//! kernel overwrites the random seed with zeros after use.

use crate::e820::E820Entry;

/// `SETUP_E820_EXT`: continues the memory map.
const SETUP_E820_EXT: u32 = 1;
/// `SETUP_RNG_SEED`: random bytes, used by kernels from 6.0 on.
const SETUP_RNG_SEED: u32 = 9;
/// Size of the header of `struct setup_data` in bytes: next, type, length.
const HEAD: usize = 16;
/// Alignment of each entry.
const ALIGNMENT: usize = 16;

/// Contents of the list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetupData<'a> {
    /// Omitted if empty.
    pub(crate) random_seed: &'a [u8],
    /// Entries of the memory map beyond those in the page.
    pub(crate) e820: &'a [E820Entry],
}

impl SetupData<'_> {
    /// Size in bytes of [`Self::to_bytes`] for a seed size and a number of entries.
    pub(crate) fn size(random_seed: usize, entries: usize) -> u64 {
        let one = |size: usize| match size {
            0 => 0,
            size => (HEAD + size).next_multiple_of(ALIGNMENT),
        };
        (one(random_seed) + one(entries * E820Entry::SIZE)) as u64
    }

    /// The list's bytes for `address`; empty if there are no entries.
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
    fn entries_are_linked() {
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
    fn without_entries_there_is_no_list() {
        let none = SetupData {
            random_seed: &[],
            e820: &[],
        };
        assert!(none.to_bytes(0x1000).is_empty());
        assert_eq!(SetupData::size(0, 0), 0);
    }
}

//! The header of a message's first slot: one word, which is read and written atomically.

use insula_abi::channel::{
    HEADER_KIND_SHIFT, HEADER_PAGES_SHIFT, HEADER_SEQUENCE_MASK, HEADER_SIZE_SHIFT, Pages,
    SLOT_BYTES,
};

/// Maximum size of a message in bytes.
pub(crate) const SIZE_MAX: usize = u16::MAX as usize;

/// A message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Position + 1 once the slot is full.
    pub(crate) sequence: u32,
    /// Size of the message in bytes, including page references.
    pub(crate) size: u16,
    /// Number of page references at its start.
    pub(crate) pages: u8,
    /// Kind of the message.
    pub(crate) kind: u8,
}

impl Header {
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            sequence: (word & HEADER_SEQUENCE_MASK) as u32,
            size: (word >> HEADER_SIZE_SHIFT) as u16,
            pages: (word >> HEADER_PAGES_SHIFT) as u8,
            kind: (word >> HEADER_KIND_SHIFT) as u8,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.sequence)
            | u64::from(self.size) << HEADER_SIZE_SHIFT
            | u64::from(self.pages) << HEADER_PAGES_SHIFT
            | u64::from(self.kind) << HEADER_KIND_SHIFT
    }

    /// Whether its page references fit its size.
    pub(crate) fn is_valid(self) -> bool {
        usize::from(self.pages) * size_of::<Pages>() <= usize::from(self.size)
    }

    /// Number of slots of the message.
    pub(crate) fn slots(self) -> u32 {
        u32::from(self.size).div_ceil(SLOT_BYTES as u32).max(1)
    }
}

/// Sequence number of a full slot.
pub(crate) fn sequence(position: u32) -> u32 {
    position.wrapping_add(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_round_trip(word: u64) {
            prop_assert_eq!(Header::from_word(word).to_word(), word);
        }
    }

    #[test]
    fn slots_of_sizes() {
        let slots = |size| {
            Header {
                sequence: 0,
                size,
                pages: 0,
                kind: 0,
            }
            .slots()
        };
        assert_eq!([0, 1, 56, 57, 112, 113].map(slots), [1, 1, 1, 2, 2, 3]);
        assert_eq!(slots(u16::MAX), 1171);
    }
}

//! The header of a message's first slot: one word, so that it is read and written whole.

use insula_abi::channel::{
    HEADER_KIND_SHIFT, HEADER_PAGES_SHIFT, HEADER_SIZE_SHIFT, HEADER_TURN_MASK, Pages, SLOT_BYTES,
};

/// Most bytes that a header can tell of.
pub(crate) const SIZE_MAX: usize = u16::MAX as usize;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The slot's position + 1 once it is full.
    pub(crate) turn: u32,
    /// Bytes of the message, references to pages included.
    pub(crate) size: u16,
    /// References to pages that it begins with.
    pub(crate) pages: u8,
    /// Its kind.
    pub(crate) kind: u8,
}

impl Header {
    pub(crate) fn from_word(word: u64) -> Self {
        Self {
            turn: (word & HEADER_TURN_MASK) as u32,
            size: (word >> HEADER_SIZE_SHIFT) as u16,
            pages: (word >> HEADER_PAGES_SHIFT) as u8,
            kind: (word >> HEADER_KIND_SHIFT) as u8,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.turn)
            | u64::from(self.size) << HEADER_SIZE_SHIFT
            | u64::from(self.pages) << HEADER_PAGES_SHIFT
            | u64::from(self.kind) << HEADER_KIND_SHIFT
    }

    /// Whether the references that it tells of lie within its size.
    pub(crate) fn is_sound(self) -> bool {
        usize::from(self.pages) * size_of::<Pages>() <= usize::from(self.size)
    }

    /// Slots that the message takes.
    pub(crate) fn slots(self) -> u32 {
        u32::from(self.size).div_ceil(SLOT_BYTES as u32).max(1)
    }
}

/// The turn of a full slot.
pub(crate) fn turn(position: u32) -> u32 {
    position.wrapping_add(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_says_all(word: u64) {
            prop_assert_eq!(Header::from_word(word).to_word(), word);
        }
    }

    #[test]
    fn slots_of_sizes() {
        let slots = |size| {
            Header {
                turn: 0,
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

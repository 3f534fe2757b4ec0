//! Layout of a ring.

use core::mem::offset_of;

use insula_abi::channel::{Ring as Control, SLOTS_MAX, Slot};

use crate::sync::Ordering;
use crate::words::Words;

const WORD: usize = size_of::<u64>();
/// Number of words of a ring's control part.
const CONTROL: usize = size_of::<Control>() / WORD;
/// Number of words of a slot.
const SLOT: usize = size_of::<Slot>() / WORD;

/// A control word of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlWord {
    Head = offset_of!(Control, head) as isize,
    ConsumerWake = offset_of!(Control, consumer_wake) as isize,
    ProducerWake = offset_of!(Control, producer_wake) as isize,
}

/// The location or size of a ring is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid ring of {slots} slots: the number must be a power of two up to {SLOTS_MAX} that fits \
     the memory"
)]
pub struct InvalidRing {
    /// Requested number of slots.
    pub slots: u32,
}

/// The peer has broken the protocol; the ring cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the ring's protocol: {0}")]
pub struct Broken(pub &'static str);

/// A ring in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Ring<W> {
    words: W,
    control: usize,
    first_slot: usize,
    slots: u32,
}

impl<W: Words> Ring<W> {
    /// A ring of `slots` slots with its control words at word `control` and its slots at word
    /// `first_slot`. Zeroed memory is an empty ring.
    ///
    /// # Errors
    /// [`InvalidRing`] if it exceeds the words, or `slots` is not a power of two from 1 to
    /// [`SLOTS_MAX`].
    pub fn new(
        words: W,
        control: usize,
        first_slot: usize,
        slots: u32,
    ) -> Result<Self, InvalidRing> {
        let fits = |start: usize, count: usize| {
            start
                .checked_add(count)
                .is_some_and(|end| end <= words.count())
        };
        let good = slots.is_power_of_two()
            && slots <= SLOTS_MAX
            && fits(control, CONTROL)
            && fits(first_slot, SLOT * slots as usize);
        if !good {
            return Err(InvalidRing { slots });
        }
        Ok(Self {
            words,
            control,
            first_slot,
            slots,
        })
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn load_control(&self, word: ControlWord, ordering: Ordering) -> u64 {
        self.words
            .load(self.control + word as usize / WORD, ordering)
    }

    pub(crate) fn store_control(&self, word: ControlWord, value: u64, ordering: Ordering) {
        self.words
            .store(self.control + word as usize / WORD, value, ordering);
    }

    pub(crate) fn load_header(&self, position: u32, ordering: Ordering) -> u64 {
        self.words.load(self.slot(position), ordering)
    }

    pub(crate) fn store_header(&self, position: u32, value: u64, ordering: Ordering) {
        self.words.store(self.slot(position), value, ordering);
    }

    /// Writes `first`, in whole words, then `rest` to slots from a position on, which the caller
    /// has reserved.
    pub(crate) fn write(&self, position: u32, first: &[u8], rest: &[u8]) {
        let pieces = first.chunks(WORD).chain(rest.chunks(WORD));
        for (piece, place) in pieces.zip(self.byte_words(position)) {
            let mut word = [0; WORD];
            word[..piece.len()].copy_from_slice(piece);
            self.words
                .store(place, u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Reads bytes from slots from a position on.
    pub(crate) fn read(&self, position: u32, into: &mut [u8]) {
        for (piece, place) in into.chunks_mut(WORD).zip(self.byte_words(position)) {
            let word = self.words.load(place, Ordering::Relaxed).to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }

    /// Indices of the payload words from a position on, endless.
    fn byte_words(&self, position: u32) -> impl Iterator<Item = usize> {
        let slots = (0_u32..).map(move |count| self.slot(position.wrapping_add(count)));
        slots.flat_map(|slot| slot + 1..slot + SLOT)
    }

    fn slot(&self, position: u32) -> usize {
        self.first_slot + SLOT * (position & (self.slots - 1)) as usize
    }
}

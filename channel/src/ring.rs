//! Where the words of a ring lie.

use core::mem::offset_of;

use insula_abi::channel::{Ring as Control, SLOTS_MAX, Slot};

use crate::sync::Ordering;
use crate::words::Words;

const WORD: usize = size_of::<u64>();
/// Words of a ring's control part.
const CONTROL: usize = size_of::<Control>() / WORD;
/// Words of a slot.
const SLOT: usize = size_of::<Slot>() / WORD;

/// A control word of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlWord {
    Head = offset_of!(Control, head) as isize,
    ConsumerWake = offset_of!(Control, consumer_wake) as isize,
    ProducerWake = offset_of!(Control, producer_wake) as isize,
}

/// A ring cannot be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no ring of {slots} slots fits there: their number is a power of two of at most {SLOTS_MAX}"
)]
pub struct BadPlace {
    /// Slots asked for.
    pub slots: u32,
}

/// The peer has written what no peer writes. The ring is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the ring: {0}")]
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
    /// The ring of `slots` slots whose control words begin at word `control`, its slots at word
    /// `first_slot`. Memory that is all zero is an empty ring.
    ///
    /// # Errors
    /// [`BadPlace`] when it does not lie within the words, or `slots` is no power of two from 1 to
    /// [`SLOTS_MAX`].
    pub fn new(words: W, control: usize, first_slot: usize, slots: u32) -> Result<Self, BadPlace> {
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
            return Err(BadPlace { slots });
        }
        Ok(Self {
            words,
            control,
            first_slot,
            slots,
        })
    }

    /// How many slots it has.
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

    /// Copies bytes in, from the slot of a position on: `first`, whole words, then `rest`. The caller
    /// has reserved the slots.
    pub(crate) fn write(&self, position: u32, first: &[u8], rest: &[u8]) {
        let pieces = first.chunks(WORD).chain(rest.chunks(WORD));
        for (piece, place) in pieces.zip(self.byte_words(position)) {
            let mut word = [0; WORD];
            word[..piece.len()].copy_from_slice(piece);
            self.words
                .store(place, u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Copies bytes out, from the slot of a position on.
    pub(crate) fn read(&self, position: u32, into: &mut [u8]) {
        for (piece, place) in into.chunks_mut(WORD).zip(self.byte_words(position)) {
            let word = self.words.load(place, Ordering::Relaxed).to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }

    /// Indices of the words that hold bytes, slot by slot and without end.
    fn byte_words(&self, position: u32) -> impl Iterator<Item = usize> {
        let slots = (0_u32..).map(move |count| self.slot(position.wrapping_add(count)));
        slots.flat_map(|slot| slot + 1..slot + SLOT)
    }

    fn slot(&self, position: u32) -> usize {
        self.first_slot + SLOT * (position & (self.slots - 1)) as usize
    }
}

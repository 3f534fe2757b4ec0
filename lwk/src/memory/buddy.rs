//! Free frames by the buddy system: blocks of 2^order frames, aligned to their size. Two halves of a
//! block are buddies, and become that block when both are free.
//!
//! Pure: what is known of each frame lies in a slice that the caller gives, the frames themselves are
//! never touched.

/// Orders from 0 (4 KiB) to this (1 GiB).
pub const ORDER_MAX: u8 = 18;
const ORDERS: usize = ORDER_MAX as usize + 1;
/// No frame.
const NONE: u32 = u32::MAX;

/// What is known of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Neighbours in the list of free blocks, if it is the first frame of one.
    next: u32,
    previous: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Somebody's, or inside a larger block.
    Taken,
    /// First of a free block of this order.
    Free(u8),
}

impl Frame {
    /// One that is not to be had.
    pub const TAKEN: Self = Self {
        next: NONE,
        previous: NONE,
        state: State::Taken,
    };
}

/// The frames of one stretch of memory.
#[derive(Debug)]
pub struct Buddy<'a> {
    frames: &'a mut [Frame],
    /// Number of the first frame: blocks are aligned by number, not by index.
    first: u64,
    /// First free block of each order.
    free: [u32; ORDERS],
    free_frames: u64,
}

impl<'a> Buddy<'a> {
    /// Frames from number `first` on, none of them free.
    ///
    /// # Panics
    /// If there are 2^32 frames or more: 16 TiB.
    pub fn new(frames: &'a mut [Frame], first: u64) -> Self {
        assert!(frames.len() < NONE as usize, "a stretch of 16 TiB");
        frames.fill(Frame::TAKEN);
        Self {
            frames,
            first,
            free: [NONE; ORDERS],
            free_frames: 0,
        }
    }

    /// How many frames are free.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.free_frames
    }

    /// Whether a frame lies in the stretch.
    #[must_use]
    pub fn holds(&self, number: u64) -> bool {
        self.index_of(number).is_some()
    }

    fn index_of(&self, number: u64) -> Option<u32> {
        let index = number.checked_sub(self.first)?;
        (index < self.frames.len() as u64).then_some(index as u32)
    }

    /// Takes a block; its first frame's number.
    pub fn take(&mut self, order: u8) -> Option<u64> {
        let from = (order..=ORDER_MAX).find(|&order| self.free[usize::from(order)] != NONE)?;
        let index = self.free[usize::from(from)];
        self.unlink(index, from);
        for half in (order..from).rev() {
            self.link(index + (1 << half), half);
        }
        self.free_frames -= 1 << order;
        Some(self.first + u64::from(index))
    }

    /// Gives a block back, or frames for the first time.
    ///
    /// # Panics
    /// If it does not lie in the stretch, is not aligned, or is free.
    pub fn give(&mut self, number: u64, order: u8) {
        assert!(order <= ORDER_MAX && number.is_multiple_of(1 << order));
        let (mut index, mut order) = (self.index_of(number).expect("of this stretch"), order);
        assert_eq!(
            self.frames[index as usize].state,
            State::Taken,
            "given twice"
        );
        self.free_frames += 1 << order;
        while let Some(buddy) = self.free_buddy(index, order) {
            self.unlink(buddy, order);
            index = index.min(buddy);
            order += 1;
        }
        self.link(index, order);
    }

    /// Gives all frames from `start` to before `end`, in the largest blocks that there are.
    pub fn give_range(&mut self, start: u64, end: u64) {
        let mut number = start;
        while number < end {
            let aligned = number.trailing_zeros().min(u32::from(ORDER_MAX)) as u8;
            let fits = (end - number).ilog2().min(u32::from(ORDER_MAX)) as u8;
            let order = aligned.min(fits);
            self.give(number, order);
            number += 1 << order;
        }
    }

    /// The buddy of a block, if it is free as a whole and lies in the stretch.
    fn free_buddy(&self, index: u32, order: u8) -> Option<u32> {
        if order == ORDER_MAX {
            return None;
        }
        let number = self.first + u64::from(index);
        let buddy = self.index_of(number ^ 1 << order)?;
        let frame = self.frames.get(buddy as usize)?;
        (frame.state == State::Free(order)).then_some(buddy)
    }

    fn link(&mut self, index: u32, order: u8) {
        let head = self.free[usize::from(order)];
        self.frames[index as usize] = Frame {
            next: head,
            previous: NONE,
            state: State::Free(order),
        };
        if head != NONE {
            self.frames[head as usize].previous = index;
        }
        self.free[usize::from(order)] = index;
    }

    fn unlink(&mut self, index: u32, order: u8) {
        let Frame { next, previous, .. } = self.frames[index as usize];
        match previous {
            NONE => self.free[usize::from(order)] = next,
            previous => self.frames[previous as usize].next = next,
        }
        if next != NONE {
            self.frames[next as usize].previous = previous;
        }
        self.frames[index as usize] = Frame::TAKEN;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_are_disjoint_and_come_back(
            first in 0_u64..2000,
            count in 1_usize..3000,
            steps in proptest::collection::vec((0_u8..6, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut frames = vec![Frame::TAKEN; count];
            let mut buddy = Buddy::new(&mut frames, first);
            let end = first + count as u64;
            buddy.give_range(first, end);
            let mut taken: BTreeMap<u64, u8> = BTreeMap::new();
            for (order, which) in steps {
                if order == 5 && !taken.is_empty() {
                    let (&number, &order) = taken.iter().nth(which.index(taken.len())).unwrap();
                    taken.remove(&number);
                    buddy.give(number, order);
                } else if let Some(number) = buddy.take(order) {
                    prop_assert!(number.is_multiple_of(1 << order));
                    prop_assert!(first <= number && number + (1 << order) <= end);
                    let below = taken.range(..number + (1 << order)).next_back();
                    prop_assert!(below.is_none_or(|(&at, &order)| at + (1 << order) <= number));
                    taken.insert(number, order);
                }
                let held: u64 = taken.values().map(|&order| 1 << order).sum();
                prop_assert_eq!(buddy.free_frames() + held, count as u64);
            }
            for (number, order) in taken {
                buddy.give(number, order);
            }
            // Whole again: as few blocks as at first.
            let mut fresh = vec![Frame::TAKEN; count];
            let mut other = Buddy::new(&mut fresh, first);
            other.give_range(first, end);
            for order in (0..=ORDER_MAX).rev() {
                loop {
                    let pair = (buddy.take(order).is_some(), other.take(order).is_some());
                    prop_assert_eq!(pair.0, pair.1, "order {}", order);
                    if !pair.0 {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_had_of_nothing() {
        let mut frames: Vec<Frame> = vec![Frame::TAKEN; 8];
        let mut buddy = Buddy::new(&mut frames, 0);
        assert_eq!(buddy.take(0), None);
        buddy.give_range(0, 8);
        assert_eq!(buddy.take(3), Some(0));
        assert_eq!(buddy.take(0), None);
    }

    #[test]
    #[should_panic(expected = "given twice")]
    fn a_block_given_twice_is_a_bug() {
        let mut frames = vec![Frame::TAKEN; 8];
        let mut buddy = Buddy::new(&mut frames, 0);
        buddy.give(4, 0);
        buddy.give(4, 0);
    }
}

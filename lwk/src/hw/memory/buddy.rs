//! Buddy allocator of frames: blocks of 2^order frames, aligned to their size. The two halves of a
//! block are buddies, and are merged when both are free.
//!
//! Pure: the state of each frame is in a slice given by the caller; the frames themselves are not
//! touched.

mod owners;

/// Greatest order: 1 GiB. Order 0 is 4 KiB.
pub const ORDER_MAX: u8 = 18;
const ORDERS: usize = ORDER_MAX as usize + 1;
/// Index of no frame.
const NONE: u32 = u32::MAX;

/// State of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Allocated, or inside a larger block. With the number of its owners but for the first, see
    /// [`owners`].
    Allocated { sharers: u32, block_sharers: u32 },
    /// First frame of a free block, with its links in the list of those.
    Free { order: u8, next: u32, previous: u32 },
}

impl Frame {
    /// A frame that is not free, and has one owner.
    pub const ALLOCATED: Self = Self(State::Allocated {
        sharers: 0,
        block_sharers: 0,
    });
}

/// Allocator for one range of memory.
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
    /// Creates an allocator for the frames from number `first` on, none of them free.
    ///
    /// # Panics
    /// If there are 2^32 frames or more: 16 TiB.
    pub fn new(frames: &'a mut [Frame], first: u64) -> Self {
        assert!(
            frames.len() < NONE as usize,
            "a memory range of 16 TiB or more"
        );
        frames.fill(Frame::ALLOCATED);
        Self {
            frames,
            first,
            free: [NONE; ORDERS],
            free_frames: 0,
        }
    }

    /// Returns the number of free frames.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.free_frames
    }

    /// Whether a frame is in the range.
    #[must_use]
    pub fn holds(&self, number: u64) -> bool {
        self.index_of(number).is_some()
    }

    fn index_of(&self, number: u64) -> Option<u32> {
        let index = number.checked_sub(self.first)?;
        (index < self.frames.len() as u64).then_some(index as u32)
    }

    /// Allocates a block. Returns the number of its first frame.
    pub fn alloc(&mut self, order: u8) -> Option<u64> {
        let from = (order..=ORDER_MAX).find(|&order| self.free[usize::from(order)] != NONE)?;
        let index = self.free[usize::from(from)];
        self.unlink(index, from);
        for half in (order..from).rev() {
            self.link(index + (1 << half), half);
        }
        self.free_frames -= 1 << order;
        Some(self.first + u64::from(index))
    }

    /// Frees a block, or adds frames for the first time.
    ///
    /// # Panics
    /// If it is outside the range, not aligned, or free.
    pub fn free(&mut self, number: u64, order: u8) {
        assert!(order <= ORDER_MAX && number.is_multiple_of(1 << order));
        let (mut index, mut order) = (self.index_of(number).expect("a frame of this range"), order);
        assert_eq!(
            self.frames[index as usize],
            Frame::ALLOCATED,
            "freed twice, or shared"
        );
        self.free_frames += 1 << order;
        while let Some(buddy) = self.free_buddy(index, order) {
            self.unlink(buddy, order);
            index = index.min(buddy);
            order += 1;
        }
        self.link(index, order);
    }

    /// Frees all frames from `start` to before `end`, in the largest possible blocks.
    pub fn free_range(&mut self, start: u64, end: u64) {
        let mut number = start;
        while number < end {
            let aligned = number.trailing_zeros().min(u32::from(ORDER_MAX)) as u8;
            let fits = (end - number).ilog2().min(u32::from(ORDER_MAX)) as u8;
            let order = aligned.min(fits);
            self.free(number, order);
            number += 1 << order;
        }
    }

    /// Returns the buddy of a block, if it is in the range and wholly free.
    fn free_buddy(&self, index: u32, order: u8) -> Option<u32> {
        if order == ORDER_MAX {
            return None;
        }
        let number = self.first + u64::from(index);
        let buddy = self.index_of(number ^ 1 << order)?;
        let State::Free { order: found, .. } = self.frames.get(buddy as usize)?.0 else {
            return None;
        };
        (found == order).then_some(buddy)
    }

    /// Returns the links of the first frame of a free block.
    fn links(&mut self, index: u32) -> (&mut u32, &mut u32) {
        match &mut self.frames[index as usize].0 {
            State::Free { next, previous, .. } => (next, previous),
            State::Allocated { .. } => unreachable!("a block in a list of free ones"),
        }
    }

    fn link(&mut self, index: u32, order: u8) {
        let head = self.free[usize::from(order)];
        self.frames[index as usize] = Frame(State::Free {
            order,
            next: head,
            previous: NONE,
        });
        if head != NONE {
            *self.links(head).1 = index;
        }
        self.free[usize::from(order)] = index;
    }

    fn unlink(&mut self, index: u32, order: u8) {
        let (&mut next, &mut previous) = self.links(index);
        match previous {
            NONE => self.free[usize::from(order)] = next,
            previous => *self.links(previous).0 = next,
        }
        if next != NONE {
            *self.links(next).1 = previous;
        }
        self.frames[index as usize] = Frame::ALLOCATED;
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
        fn blocks_are_disjoint_and_can_be_freed(
            first in 0_u64..2000,
            count in 1_usize..3000,
            steps in proptest::collection::vec((0_u8..6, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut frames = vec![Frame::ALLOCATED; count];
            let mut buddy = Buddy::new(&mut frames, first);
            let end = first + count as u64;
            buddy.free_range(first, end);
            let mut taken: BTreeMap<u64, u8> = BTreeMap::new();
            for (order, which) in steps {
                if order == 5 && !taken.is_empty() {
                    let (&number, &order) = taken.iter().nth(which.index(taken.len())).unwrap();
                    taken.remove(&number);
                    buddy.free(number, order);
                } else if let Some(number) = buddy.alloc(order) {
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
                buddy.free(number, order);
            }
            // All frames are free: as few blocks as at first.
            let mut fresh = vec![Frame::ALLOCATED; count];
            let mut other = Buddy::new(&mut fresh, first);
            other.free_range(first, end);
            for order in (0..=ORDER_MAX).rev() {
                loop {
                    let pair = (buddy.alloc(order).is_some(), other.alloc(order).is_some());
                    prop_assert_eq!(pair.0, pair.1, "order {}", order);
                    if !pair.0 {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn allocation_fails_without_free_frames() {
        let mut frames: Vec<Frame> = vec![Frame::ALLOCATED; 8];
        let mut buddy = Buddy::new(&mut frames, 0);
        assert_eq!(buddy.alloc(0), None);
        buddy.free_range(0, 8);
        assert_eq!(buddy.alloc(3), Some(0));
        assert_eq!(buddy.alloc(0), None);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_a_block_twice_panics() {
        let mut frames = vec![Frame::ALLOCATED; 8];
        let mut buddy = Buddy::new(&mut frames, 0);
        buddy.free(4, 0);
        buddy.free(4, 0);
    }
}

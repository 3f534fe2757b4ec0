//! Owners of frames. A block is allocated for one owner; after fork(2) parent and child own the
//! frames of their private pages together. Each owner gives them up once, and a frame is free when
//! its last one does.
//!
//! A large block is mostly shared and given up as a whole: that is counted once, in its first frame.
//! Only when an owner gives up a part of it, each of its frames gets a count of its own.

use crate::hw::memory::buddy::{Buddy, Frame, State};

/// Order of the blocks that are counted as a whole: 2 MiB.
const BLOCK_ORDER: u8 = 9;
const BLOCK_FRAMES: u64 = 1 << BLOCK_ORDER;

impl Buddy<'_> {
    /// Adds an owner to an allocated block.
    ///
    /// # Panics
    /// If it is outside the range, or free.
    pub fn share(&mut self, number: u64, order: u8) {
        let (step, is_whole) = match order {
            BLOCK_ORDER.. => (BLOCK_FRAMES, true),
            _ => (1, false),
        };
        for number in (number..number + (1 << order)).step_by(step as usize) {
            let (sharers, block_sharers) = self.counts(number).expect("a frame of this range");
            match is_whole {
                true => *block_sharers += 1,
                false => *sharers += 1,
            }
        }
    }

    /// Whether any frame of a block has several owners.
    #[must_use]
    pub fn is_shared(&self, number: u64, order: u8) -> bool {
        let mut frames = number..number + (1 << order);
        let mut blocks = (number..number + (1 << order)).step_by(BLOCK_FRAMES as usize);
        blocks.any(|number| self.block_sharers(number) > 0)
            || frames.any(|number| self.sharers(number) > 0)
    }

    /// Takes one owner from each frame of a block, and frees those that have no other, in the
    /// largest possible blocks. Returns how many.
    ///
    /// # Panics
    /// If it is outside the range, not aligned, or free.
    pub fn give_up(&mut self, number: u64, order: u8) -> u64 {
        if !self.is_shared(number, order) {
            self.free(number, order);
            return 1 << order;
        }
        if order == BLOCK_ORDER && self.block_sharers(number) > 0 {
            self.take_block_sharer(number);
            return 0;
        }
        if order == 0 {
            self.take_sharer(number);
            return 0;
        }
        let half = order - 1;
        self.give_up(number, half) + self.give_up(number + (1 << half), half)
    }

    fn take_block_sharer(&mut self, number: u64) {
        if let Some((_, block_sharers)) = self.counts(number) {
            *block_sharers -= 1;
        }
    }

    /// Takes an owner from one frame that has several.
    fn take_sharer(&mut self, number: u64) {
        if self.sharers(number) == 0 {
            self.spread(number & !(BLOCK_FRAMES - 1));
        }
        if let Some((sharers, _)) = self.counts(number) {
            *sharers -= 1;
        }
    }

    /// Counts an owner of a whole block in each of its frames instead.
    fn spread(&mut self, first: u64) {
        self.take_block_sharer(first);
        for number in first..first + BLOCK_FRAMES {
            if let Some((sharers, _)) = self.counts(number) {
                *sharers += 1;
            }
        }
    }

    /// Returns how many owners, but for the first, each frame of the block around a frame has.
    fn block_sharers(&self, number: u64) -> u32 {
        match self.allocated(number & !(BLOCK_FRAMES - 1)) {
            Some((_, block_sharers)) => block_sharers,
            // The block is not wholly in this range, or not wholly allocated.
            None => 0,
        }
    }

    /// Returns how many more owners this frame has.
    fn sharers(&self, number: u64) -> u32 {
        self.allocated(number).map_or(0, |(sharers, _)| sharers)
    }

    fn allocated(&self, number: u64) -> Option<(u32, u32)> {
        let index = self.index_of(number)?;
        match self.frames[index as usize].0 {
            State::Allocated {
                sharers,
                block_sharers,
            } => Some((sharers, block_sharers)),
            State::Free { .. } => None,
        }
    }

    /// Returns the two counts of a frame that is not free.
    fn counts(&mut self, number: u64) -> Option<(&mut u32, &mut u32)> {
        let index = self.index_of(number)?;
        let Frame(state) = &mut self.frames[index as usize];
        match state {
            State::Allocated {
                sharers,
                block_sharers,
            } => Some((sharers, block_sharers)),
            State::Free { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Frames of the test's range: two large blocks, and parts of others before and behind.
    const FIRST: u64 = 300;
    const END: u64 = 4 * BLOCK_FRAMES - 100;

    /// An owner: the blocks that it has not given up, each whole or as single frames.
    type Owner = Vec<(u64, u8)>;

    /// Returns how many owners each frame has.
    fn owner_counts(owners: &[Owner]) -> Vec<u32> {
        let mut counts = vec![0; END as usize];
        for &(first, order) in owners.iter().flatten() {
            let block = &mut counts[first as usize..][..1 << order];
            block.iter_mut().for_each(|count| *count += 1);
        }
        counts
    }

    /// Splits a block as a page table does: into single frames.
    fn split(owner: &mut Owner, which: usize) {
        let (first, order) = owner.swap_remove(which);
        owner.extend((first..first + (1 << order)).map(|frame| (frame, 0)));
    }

    fn all_blocks(buddy: &mut Buddy<'_>) -> Owner {
        let large = core::iter::from_fn(|| Some((buddy.alloc(BLOCK_ORDER)?, BLOCK_ORDER)));
        let mut blocks: Owner = large.collect();
        blocks.extend(core::iter::from_fn(|| Some((buddy.alloc(0)?, 0))));
        blocks
    }

    proptest! {
        #[test]
        fn a_frame_is_free_when_its_last_owner_gives_it_up(
            steps in proptest::collection::vec(
                (0_u8..8, any::<prop::sample::Index>(), any::<prop::sample::Index>()),
                1..120,
            ),
        ) {
            let mut frames = vec![Frame::ALLOCATED; (END - FIRST) as usize];
            let mut buddy = Buddy::new(&mut frames, FIRST);
            buddy.free_range(FIRST, END);
            let mut owners = vec![all_blocks(&mut buddy)];
            prop_assert_eq!(buddy.free_frames(), 0);
            for (step, who, which) in steps {
                let who = who.index(owners.len());
                let count = owners[who].len();
                match step {
                    0 => {
                        let child = owners[who].clone();
                        child.iter().for_each(|&(first, order)| buddy.share(first, order));
                        owners.push(child);
                    }
                    1 if count > 0 => split(&mut owners[who], which.index(count)),
                    _ if count > 0 => {
                        let (first, order) = owners[who].swap_remove(which.index(count));
                        let before = buddy.free_frames();
                        let freed = buddy.give_up(first, order);
                        prop_assert_eq!(buddy.free_frames(), before + freed);
                    }
                    _ => {}
                }
            }
            let counts = owner_counts(&owners);
            let held = counts.iter().filter(|&&count| count > 0).count();
            prop_assert_eq!(buddy.free_frames(), END - FIRST - held as u64);
            for &(first, order) in owners.iter().flatten() {
                let is_shared = counts[first as usize..][..1 << order].iter().any(|&n| n > 1);
                prop_assert_eq!(buddy.is_shared(first, order), is_shared);
            }
            for (first, order) in owners.into_iter().flatten() {
                buddy.give_up(first, order);
            }
            prop_assert_eq!(buddy.free_frames(), END - FIRST);
            // Nothing of the counts is left.
            prop_assert_eq!(all_blocks(&mut buddy).len() as u64, {
                let large = END / BLOCK_FRAMES - FIRST.div_ceil(BLOCK_FRAMES);
                large + (END - FIRST - large * BLOCK_FRAMES)
            });
        }
    }

    #[test]
    fn a_large_block_is_shared_and_given_up_as_a_whole() {
        let mut frames = vec![Frame::ALLOCATED; 1024];
        let mut buddy = Buddy::new(&mut frames, 0);
        buddy.share(512, BLOCK_ORDER);
        buddy.share(512, BLOCK_ORDER);
        assert!(buddy.is_shared(700, 0));
        assert!(!buddy.is_shared(0, BLOCK_ORDER));
        assert_eq!(buddy.sharers(700), 0);
        assert_eq!(buddy.give_up(512, BLOCK_ORDER), 0);
        assert_eq!(buddy.give_up(512, BLOCK_ORDER), 0);
        assert!(!buddy.is_shared(512, BLOCK_ORDER));
        assert_eq!(buddy.give_up(512, BLOCK_ORDER), 512);
    }

    #[test]
    fn the_rest_of_a_block_goes_with_its_other_owner() {
        let mut frames = vec![Frame::ALLOCATED; 512];
        let mut buddy = Buddy::new(&mut frames, 0);
        buddy.share(0, BLOCK_ORDER);
        assert_eq!(buddy.give_up(77, 0), 0);
        assert!(!buddy.is_shared(77, 0) && buddy.is_shared(78, 0));
        assert_eq!(buddy.give_up(0, BLOCK_ORDER), 1);
        assert_eq!(buddy.free_frames(), 1);
    }
}

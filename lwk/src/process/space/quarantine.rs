//! Frames that a program has given back while something of the base pins them: I/O under way, or a
//! pipe into which pages were spliced. Only these are set aside, each until the base does not name it
//! any more; what is given back with them is free at once.

use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_bare::memory::{FRAME_SIZE, PhysAddr};

use super::give_blocks;
use crate::process::shared::Shared;

/// Frames in a row, as the buddy system has them: the first, and the order.
pub(super) type Block = (PhysAddr, u8);

/// What the base says of a program's frames when it has let go of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// These are pinned, by physical address, and no others that it has ever let go of.
    Frames(Vec<u64>),
    /// More than it can tell: any may be.
    Unknown,
    /// It has not let go.
    Refused,
}

impl Pinned {
    /// The base had nothing there.
    pub const NONE: Self = Self::Frames(Vec::new());

    /// Whether something may be pinned.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self != Self::NONE
    }

    fn holds(&self, (start, order): Block) -> bool {
        let end = start.0 + (FRAME_SIZE << order);
        match self {
            Self::Frames(frames) => frames.iter().any(|frame| (start.0..end).contains(frame)),
            Self::Unknown | Self::Refused => true,
        }
    }

    /// Divides a block into those that are free and frames that are pinned.
    fn divide(&self, block: Block, free: &mut Vec<Block>, pinned: &mut Vec<Block>) {
        let (start, order) = block;
        if !self.holds(block) {
            free.push(block);
        } else if order == 0 || !matches!(self, Self::Frames(_)) {
            pinned.push(block);
        } else {
            let half = order - 1;
            let second = PhysAddr(start.0 + (FRAME_SIZE << half));
            self.divide((start, half), free, pinned);
            self.divide((second, half), free, pinned);
        }
    }
}

/// What a program has taken out of its page table.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Its own frames.
    pub(super) own: Vec<Block>,
    /// Those of memory that others may have, too, with it.
    pub(super) shared: Vec<(Arc<Shared>, PhysAddr)>,
}

impl Taken {
    pub(super) fn count(&self) -> usize {
        self.own.len() + self.shared.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }
}

/// The frames that are set aside.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    own: Vec<Block>,
    shared: Vec<(Arc<Shared>, PhysAddr)>,
    /// Of these the base has not let go: they are free when the process is gone.
    refused: Taken,
    /// Something was pinned when the base last said so, here or in a page that is the program's still.
    is_any_pinned: bool,
}

impl Quarantine {
    /// Whether the base has to be asked even if it reaches nothing of what is given back: a page may
    /// have been pinned where it was mapped before.
    pub(super) fn is_any_pinned(&self) -> bool {
        self.is_any_pinned
    }

    /// What the base says now: frames that are not pinned any more are given back. Whether there were
    /// any.
    pub(super) fn hear(&mut self, pinned: &Pinned) -> bool {
        if *pinned == Pinned::Refused {
            return false;
        }
        self.is_any_pinned = pinned.is_any();
        let before = core::mem::take(&mut self.own);
        let free = divide(pinned, before, &mut self.own);
        let count = self.shared.len();
        self.shared.retain(|&(_, frame)| pinned.holds((frame, 0)));
        give_blocks(&free);
        !free.is_empty() || self.shared.len() < count
    }

    /// Gives back what was taken, but for what is pinned.
    pub(super) fn admit(&mut self, taken: Taken, pinned: &Pinned) {
        if *pinned == Pinned::Refused {
            self.refused.own.extend(taken.own);
            self.refused.shared.extend(taken.shared);
            return;
        }
        let free = divide(pinned, taken.own, &mut self.own);
        let shared = taken.shared.into_iter();
        self.shared
            .extend(shared.filter(|&(_, frame)| pinned.holds((frame, 0))));
        give_blocks(&free);
    }

    /// Gives all back: nothing of the base has any page any more.
    pub(super) fn end(&mut self) {
        let all = core::mem::take(self);
        give_blocks(&all.own);
        give_blocks(&all.refused.own);
    }
}

fn divide(pinned: &Pinned, blocks: Vec<Block>, kept: &mut Vec<Block>) -> Vec<Block> {
    if *pinned == Pinned::NONE {
        return blocks;
    }
    let mut free = Vec::new();
    for block in blocks {
        pinned.divide(block, &mut free, kept);
    }
    free
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn divided(pinned: &Pinned, blocks: &[Block]) -> (Vec<Block>, Vec<Block>) {
        let mut kept = Vec::new();
        let free = divide(pinned, blocks.to_vec(), &mut kept);
        (free, kept)
    }

    fn frames(blocks: &[Block]) -> u64 {
        blocks.iter().map(|&(_, order)| 1 << order).sum()
    }

    #[test]
    fn only_the_pinned_frame_of_a_large_page_is_kept() {
        let large = (PhysAddr(2 * MIB), 9);
        let pinned = 2 * MIB + 77 * FRAME_SIZE;
        let told = Pinned::Frames(vec![pinned, 64 * MIB]);
        let (free, kept) = divided(&told, &[large, (PhysAddr(8 * MIB), 0)]);
        assert_eq!(kept, [(PhysAddr(pinned), 0)]);
        assert_eq!(frames(&free), 512);
        for &(start, order) in &free {
            assert!(start.0.is_multiple_of(FRAME_SIZE << order));
            assert!(!(start.0..start.0 + (FRAME_SIZE << order)).contains(&pinned));
        }
    }

    #[test]
    fn all_is_kept_whole_if_any_may_be_pinned() {
        let blocks = [(PhysAddr(2 * MIB), 9), (PhysAddr(8 * MIB), 0)];
        for told in [Pinned::Unknown, Pinned::Refused] {
            assert_eq!(divided(&told, &blocks), (vec![], blocks.to_vec()));
            assert!(told.is_any());
        }
        assert_eq!(divided(&Pinned::NONE, &blocks), (blocks.to_vec(), vec![]));
    }
}

//! Frames that a program has given back while something of the base pins them: I/O under way, or a
//! pipe into which pages were spliced. Only these are set aside, each until the base does not name it
//! any more; what is given back with them is free at once.

use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_bare::memory::{FRAME_SIZE, PhysAddr};

use crate::memory::{give_block, reserve_to_free};
use crate::process::shared::Shared;
use crate::warning;

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

    /// Divides a block into those that are free and frames that are pinned; `tell` is told of each, and
    /// whether it is pinned.
    fn divide(&self, block: Block, tell: &mut dyn FnMut(Block, bool)) {
        let (start, order) = block;
        let is_pinned = self.holds(block);
        if !is_pinned || order == 0 || !matches!(self, Self::Frames(_)) {
            return tell(block, is_pinned);
        }
        let half = order - 1;
        let second = PhysAddr(start.0 + (FRAME_SIZE << half));
        self.divide((start, half), tell);
        self.divide((second, half), tell);
    }
}

/// Frames that are not to be used.
#[derive(Debug, Default)]
struct Kept {
    /// The program's own.
    own: Vec<Block>,
    /// Those of memory that others may have, too, with it.
    shared: Vec<(Arc<Shared>, PhysAddr)>,
    /// How many are nowhere noted, for want of memory: they are never used again.
    lost_frames: u64,
}

impl Kept {
    fn keep(&mut self, block: Block) {
        match reserve_to_free(&mut self.own, 1) {
            Ok(()) => self.own.push(block),
            Err(_) => self.lost_frames += 1 << block.1,
        }
    }

    fn keep_shared(&mut self, shared: &Arc<Shared>, frame: PhysAddr) {
        match reserve_to_free(&mut self.shared, 1) {
            Ok(()) => self.shared.push((Arc::clone(shared), frame)),
            Err(_) => {
                core::mem::forget(Arc::clone(shared));
                self.lost_frames += 1;
            }
        }
    }

    /// Gives back what is not pinned any more; whether there was any.
    fn sift(&mut self, pinned: &Pinned) -> bool {
        let mut parts = Self::default();
        let mut is_any_free = false;
        self.own.retain(|&block| {
            let mut is_whole = false;
            pinned.divide(block, &mut |part, is_pinned| match is_pinned {
                true if part == block => is_whole = true,
                true => parts.keep(part),
                false => {
                    give_block(part.0, part.1);
                    is_any_free = true;
                }
            });
            is_whole
        });
        for part in parts.own {
            self.keep(part);
        }
        self.lost_frames += parts.lost_frames;
        let count = self.shared.len();
        self.shared.retain(|&(_, frame)| pinned.holds((frame, 0)));
        is_any_free || self.shared.len() < count
    }

    fn free(self) {
        for (frame, order) in self.own {
            give_block(frame, order);
        }
        if self.lost_frames > 0 {
            warning!("{} frames are lost: the base held them", self.lost_frames);
        }
    }
}

/// The frames that are set aside.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    pinned: Kept,
    /// Of these the base has not let go: they are free when the process is gone.
    refused: Kept,
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
        self.pinned.sift(pinned)
    }

    /// Gives a block back that was the program's own, but for what of it is pinned.
    pub(super) fn admit(&mut self, block: Block, pinned: &Pinned) {
        let kept = match pinned {
            Pinned::Refused => &mut self.refused,
            _ => &mut self.pinned,
        };
        pinned.divide(block, &mut |part, is_pinned| match is_pinned {
            true => kept.keep(part),
            false => give_block(part.0, part.1),
        });
    }

    /// Sees to it that a frame of memory that others may have, too, is not used again as long as it is
    /// pinned.
    pub(super) fn admit_shared(&mut self, shared: &Arc<Shared>, frame: PhysAddr, pinned: &Pinned) {
        match pinned {
            Pinned::Refused => self.refused.keep_shared(shared, frame),
            _ if pinned.holds((frame, 0)) => self.pinned.keep_shared(shared, frame),
            _ => {}
        }
    }

    /// Gives all back: nothing of the base has any page any more.
    pub(super) fn end(&mut self) {
        let Self {
            pinned, refused, ..
        } = core::mem::take(self);
        pinned.free();
        refused.free();
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn divided(pinned: &Pinned, blocks: &[Block]) -> (Vec<Block>, Vec<Block>) {
        let (mut free, mut kept) = (Vec::new(), Vec::new());
        for &block in blocks {
            pinned.divide(block, &mut |part, is_pinned| match is_pinned {
                true => kept.push(part),
                false => free.push(part),
            });
        }
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

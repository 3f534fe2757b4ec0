//! Quarantine for frames that a program has freed while the base pins them: for I/O under way, or
//! in a pipe to which pages were spliced. Only pinned frames are kept, each until the base no
//! longer names it; all others are freed at once.

use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_bare::memory::{FRAME_SIZE, PhysAddr};

use crate::hw::memory::frames::free_block;
use crate::hw::memory::room::reserve_to_free;
use crate::task::shared_object::SharedObject;
use crate::warning;

/// Block of frames of the buddy allocator: first frame and order.
pub(super) type Block = (PhysAddr, u8);

/// Frames of a program that are pinned, as the base reports after an invalidation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// Physical addresses of all pinned frames, of this and earlier invalidations.
    Frames(Vec<u64>),
    /// Too many to list: any frame may be pinned.
    Unknown,
    /// The invalidation failed.
    NotInvalidated,
}

impl Pinned {
    /// No frame is pinned.
    pub const NONE: Self = Self::Frames(Vec::new());

    /// Whether any frame may be pinned.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self != Self::NONE
    }

    /// Whether any frame of a block may be pinned.
    pub(super) fn overlaps(&self, (start, order): Block) -> bool {
        let end = start.0 + (FRAME_SIZE << order);
        match self {
            Self::Frames(frames) => frames.iter().any(|frame| (start.0..end).contains(frame)),
            Self::Unknown | Self::NotInvalidated => true,
        }
    }

    /// Splits a block into unpinned parts and pinned frames; `report` is called with each part, and
    /// whether it is pinned.
    fn split(&self, block: Block, report: &mut dyn FnMut(Block, bool)) {
        let (start, order) = block;
        let is_pinned = self.overlaps(block);
        if !is_pinned || order == 0 || !matches!(self, Self::Frames(_)) {
            return report(block, is_pinned);
        }
        let half = order - 1;
        let second = PhysAddr(start.0 + (FRAME_SIZE << half));
        self.split((start, half), report);
        self.split((second, half), report);
    }
}

/// Frames that must not be reused yet.
#[derive(Debug, Default)]
struct FrameList {
    /// Private frames.
    own: Vec<Block>,
    /// Frames of shared-memory objects, which are kept alive.
    shared: Vec<(Arc<SharedObject>, PhysAddr)>,
    /// Number of frames that could not be recorded for lack of memory, and are leaked.
    leaked_frames: u64,
}

impl FrameList {
    fn keep(&mut self, block: Block) {
        match reserve_to_free(&mut self.own, 1) {
            Ok(()) => self.own.push(block),
            Err(_) => self.leaked_frames += 1 << block.1,
        }
    }

    fn keep_object(&mut self, shared: &Arc<SharedObject>, frame: PhysAddr) {
        match reserve_to_free(&mut self.shared, 1) {
            Ok(()) => self.shared.push((Arc::clone(shared), frame)),
            Err(_) => {
                core::mem::forget(Arc::clone(shared));
                self.leaked_frames += 1;
            }
        }
    }

    /// Frees what is no longer pinned. Returns whether there was any.
    fn free_unpinned(&mut self, pinned: &Pinned) -> bool {
        let mut parts = Self::default();
        let mut is_any_free = false;
        self.own.retain(|&block| {
            let mut is_whole = false;
            pinned.split(block, &mut |part, is_pinned| match is_pinned {
                true if part == block => is_whole = true,
                true => parts.keep(part),
                false => {
                    free_block(part.0, part.1);
                    is_any_free = true;
                }
            });
            is_whole
        });
        for part in parts.own {
            self.keep(part);
        }
        self.leaked_frames += parts.leaked_frames;
        let count = self.shared.len();
        self.shared
            .retain(|&(_, frame)| pinned.overlaps((frame, 0)));
        is_any_free || self.shared.len() < count
    }

    fn free(self) {
        for (frame, order) in self.own {
            free_block(frame, order);
        }
        if self.leaked_frames > 0 {
            warning!(
                "{} frames are leaked: the base pinned them",
                self.leaked_frames
            );
        }
    }
}

/// The quarantine of an address space.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    pinned: FrameList,
    /// Frames whose invalidation failed: freed with the process.
    not_invalidated: FrameList,
    /// Whether any frame of the program was pinned at the last invalidation, in quarantine or still
    /// mapped.
    is_any_pinned: bool,
}

impl Quarantine {
    /// Whether the base has to be called even if it has nothing mapped: a page may have been pinned
    /// at another address.
    pub(super) fn is_any_pinned(&self) -> bool {
        self.is_any_pinned
    }

    /// Frees the frames in quarantine that are no longer pinned. Returns whether there were any.
    /// any.
    pub(super) fn update(&mut self, pinned: &Pinned) -> bool {
        if *pinned == Pinned::NotInvalidated {
            return false;
        }
        self.is_any_pinned = pinned.is_any();
        self.pinned.free_unpinned(pinned)
    }

    /// Frees a private block, except for pinned frames, which are kept.
    pub(super) fn free_or_keep(&mut self, block: Block, pinned: &Pinned) {
        let kept = match pinned {
            Pinned::NotInvalidated => &mut self.not_invalidated,
            _ => &mut self.pinned,
        };
        pinned.split(block, &mut |part, is_pinned| match is_pinned {
            true => kept.keep(part),
            false => free_block(part.0, part.1),
        });
    }

    /// Keeps a frame of a shared-memory object from being reused as long as it is pinned.
    pub(super) fn keep_object_frame(
        &mut self,
        shared: &Arc<SharedObject>,
        frame: PhysAddr,
        pinned: &Pinned,
    ) {
        match pinned {
            Pinned::NotInvalidated => self.not_invalidated.keep_object(shared, frame),
            _ if pinned.overlaps((frame, 0)) => self.pinned.keep_object(shared, frame),
            _ => {}
        }
    }

    /// Frees everything: the base uses no page any more.
    pub(super) fn free_all(&mut self) {
        let Self {
            pinned,
            not_invalidated,
            ..
        } = core::mem::take(self);
        pinned.free();
        not_invalidated.free();
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
            pinned.split(block, &mut |part, is_pinned| match is_pinned {
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
        let frame = 2 * MIB + 77 * FRAME_SIZE;
        let pinned = Pinned::Frames(vec![frame, 64 * MIB]);
        let (free, kept) = divided(&pinned, &[large, (PhysAddr(8 * MIB), 0)]);
        assert_eq!(kept, [(PhysAddr(frame), 0)]);
        assert_eq!(frames(&free), 512);
        for &(start, order) in &free {
            assert!(start.0.is_multiple_of(FRAME_SIZE << order));
            assert!(!(start.0..start.0 + (FRAME_SIZE << order)).contains(&frame));
        }
    }

    #[test]
    fn blocks_are_kept_whole_if_any_frame_may_be_pinned() {
        let blocks = [(PhysAddr(2 * MIB), 9), (PhysAddr(8 * MIB), 0)];
        for pinned in [Pinned::Unknown, Pinned::NotInvalidated] {
            assert_eq!(divided(&pinned, &blocks), (vec![], blocks.to_vec()));
            assert!(pinned.is_any());
        }
        assert_eq!(divided(&Pinned::NONE, &blocks), (blocks.to_vec(), vec![]));
    }
}

//! The pages that the other side of a channel may refer to.
//!
//! A page reference in a message ([`Pages`]) is only a claim. Before the pages are used it is
//! checked against what is known independently of the sender: which memory is its own, and what was
//! granted to it. [`crate::channel::End`] checks each message.

use insula_abi::Chunk;
use insula_abi::channel::{Pages, Right};

/// Size of a page in bytes.
const PAGE: u64 = 4096;

/// A page reference that the sender may not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerPagesError {
    /// It refers to no pages, or its range is invalid.
    #[error("an invalid reference to {0} pages at {1:#x}")]
    Malformed(u32, u64),
    /// The right is unknown.
    #[error("a page reference with the unknown right {0}")]
    UnknownRight(u32),
    /// Some of the pages are neither the sender's own nor granted to it.
    #[error("a reference to {0} pages at {1:#x}, not all of which the sender has")]
    NotGranted(u32, u64),
    /// It moves pages that were only granted to the sender.
    #[error("a reference that moves {0} pages at {1:#x}, which were only granted to the sender")]
    NotOwned(u32, u64),
}

/// The pages that one side of a channel may refer to; by default none.
#[derive(Clone, Debug, Default)]
pub struct PeerPages {
    /// Sorted and disjoint.
    own: Vec<Chunk>,
    granted: Vec<Chunk>,
}

impl PeerPages {
    /// Those of a node with this memory, in any order.
    #[must_use]
    pub fn new(own: &[Chunk]) -> Self {
        Self {
            own: merged(own.to_vec()),
            granted: Vec::new(),
        }
    }

    /// Adds granted pages, by their physical addresses.
    pub fn grant(&mut self, pages: &[u64]) {
        let page = |&start: &u64| Chunk { start, size: PAGE };
        let all = self.granted.drain(..).chain(pages.iter().map(page));
        self.granted = merged(all.collect());
    }

    /// Removes all granted pages.
    pub fn revoke_all(&mut self) {
        self.granted.clear();
    }

    /// Checks a reference of that side.
    ///
    /// # Errors
    /// [`PeerPagesError`]; the pages must not be used.
    pub fn check(&self, pages: &Pages) -> Result<(), PeerPagesError> {
        let Pages {
            start,
            count,
            right,
        } = *pages;
        let size = u64::from(count) * PAGE;
        if count == 0 || start % PAGE != 0 || start.checked_add(size).is_none() {
            return Err(PeerPagesError::Malformed(count, start));
        }
        if ![Right::GRANTED, Right::UNTIL_REPLY, Right::MOVED].contains(&right) {
            return Err(PeerPagesError::UnknownRight(right.0));
        }
        let (own, granted) = (
            covers(&self.own, start, size),
            covers(&self.granted, start, size),
        );
        match (own, granted) {
            (true, _) => Ok(()),
            (false, true) if right == Right::MOVED => Err(PeerPagesError::NotOwned(count, start)),
            (false, true) => Ok(()),
            (false, false) => Err(PeerPagesError::NotGranted(count, start)),
        }
    }
}

/// Sorted, adjacent and overlapping chunks merged.
fn merged(mut chunks: Vec<Chunk>) -> Vec<Chunk> {
    chunks.retain(|chunk| chunk.size > 0);
    chunks.sort_unstable_by_key(|chunk| chunk.start);
    let mut all: Vec<Chunk> = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let end = chunk.start.saturating_add(chunk.size);
        match all.last_mut() {
            Some(last) if chunk.start <= last.start.saturating_add(last.size) => {
                last.size = last.size.max(end - last.start);
            }
            _ => all.push(chunk),
        }
    }
    all
}

fn covers(chunks: &[Chunk], start: u64, size: u64) -> bool {
    let index = chunks.partition_point(|chunk| chunk.start <= start);
    let Some(chunk) = index.checked_sub(1).map(|index| chunks[index]) else {
        return false;
    };
    let skip = start - chunk.start;
    skip <= chunk.size && size <= chunk.size - skip
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn pages(first: u64, count: u32, right: Right) -> Pages {
        Pages {
            start: first * PAGE,
            count,
            right,
        }
    }

    fn chunk((first, count): (u64, u64)) -> Chunk {
        Chunk {
            start: first * PAGE,
            size: count * PAGE,
        }
    }

    #[test]
    fn malformed_references_are_distinguished() {
        let peer_pages = PeerPages::new(&[chunk((1, 4)), chunk((5, 3))]);
        assert_eq!(peer_pages.check(&pages(1, 7, Right::MOVED)), Ok(()));
        assert_eq!(
            peer_pages.check(&pages(1, 0, Right::UNTIL_REPLY)),
            Err(PeerPagesError::Malformed(0, PAGE))
        );
        assert_eq!(
            peer_pages.check(&pages(1, 1, Right(9))),
            Err(PeerPagesError::UnknownRight(9))
        );
        let last = u64::MAX / PAGE;
        let beyond = peer_pages.check(&pages(last, 2, Right::UNTIL_REPLY));
        assert_eq!(beyond, Err(PeerPagesError::Malformed(2, last * PAGE)));
        let unaligned = Pages {
            start: PAGE + 1,
            ..pages(1, 1, Right::UNTIL_REPLY)
        };
        assert!(matches!(
            peer_pages.check(&unaligned),
            Err(PeerPagesError::Malformed(..))
        ));
    }

    proptest! {
        #[test]
        fn agrees_with_sets_of_pages(
            own in prop::collection::vec((0_u64..60, 0_u64..9), 0..6),
            granted in prop::collection::btree_set(0_u64..60, 0..20),
            first in 0_u64..70,
            count in 1_u32..8,
            moved in any::<bool>(),
        ) {
            let chunks: Vec<_> = own.iter().copied().map(chunk).collect();
            let mut peer_pages = PeerPages::new(&chunks);
            peer_pages.grant(&granted.iter().map(|page| page * PAGE).collect::<Vec<_>>());
            let own = own.iter().flat_map(|&(first, count)| first..first + count);
            let own: BTreeSet<u64> = own.collect();
            let named = first..first + u64::from(count);
            let is_own = named.clone().all(|page| own.contains(&page));
            let is_granted = named.clone().all(|page| granted.contains(&page));
            let right = if moved { Right::MOVED } else { Right::UNTIL_REPLY };
            let allowed = is_own || (is_granted && !moved);
            prop_assert_eq!(peer_pages.check(&pages(first, count, right)).is_ok(), allowed);
            peer_pages.revoke_all();
            prop_assert_eq!(peer_pages.check(&pages(first, count, right)).is_ok(), is_own);
        }
    }
}

//! Which pages the other side of a channel may name.
//!
//! A page reference in a message ([`Pages`]) is only a claim. Before anything is done with the pages
//! it is checked against what is known without the sender: which memory is its own, and what it
//! was granted. [`crate::channel::End`] does so with each message.

use insula_abi::Chunk;
use insula_abi::channel::{Pages, Right};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// A reference that its sender may not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTheirs {
    /// It names no pages, or none that there could be.
    #[error("a reference to {0} pages at {1:#x} makes no sense")]
    Nonsense(u32, u64),
    /// No such right is known.
    #[error("a reference with the unknown right {0}")]
    Right(u32),
    /// Some of the pages are neither its sender's nor granted to it.
    #[error("the sender of a reference to {0} pages at {1:#x} does not have them all")]
    Elsewhere(u32, u64),
    /// It moves pages that its sender was only granted.
    #[error("{0} pages at {1:#x} are not its sender's to move")]
    Borrowed(u32, u64),
}

/// What one side of a channel may name; by default nothing.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Sorted, apart from each other.
    own: Vec<Chunk>,
    granted: Vec<Chunk>,
}

impl Reach {
    /// Of a node with this memory, in any order.
    #[must_use]
    pub fn new(own: &[Chunk]) -> Self {
        Self {
            own: joined(own.to_vec()),
            granted: Vec::new(),
        }
    }

    /// From now on these pages, by their physical addresses, are granted to it besides.
    pub fn grant(&mut self, pages: &[u64]) {
        let page = |&start: &u64| Chunk { start, size: PAGE };
        let all = self.granted.drain(..).chain(pages.iter().map(page));
        self.granted = joined(all.collect());
    }

    /// Nothing is granted to it any more.
    pub fn take_all(&mut self) {
        self.granted.clear();
    }

    /// Checks a reference that it has made.
    ///
    /// # Errors
    /// [`NotTheirs`]; nothing is to be done with the pages.
    pub fn check(&self, pages: &Pages) -> Result<(), NotTheirs> {
        let Pages {
            start,
            count,
            right,
        } = *pages;
        let size = u64::from(count) * PAGE;
        if count == 0 || start % PAGE != 0 || start.checked_add(size).is_none() {
            return Err(NotTheirs::Nonsense(count, start));
        }
        if ![Right::GRANTED, Right::LENT, Right::MOVED].contains(&right) {
            return Err(NotTheirs::Right(right.0));
        }
        let (own, granted) = (
            covers(&self.own, start, size),
            covers(&self.granted, start, size),
        );
        match (own, granted) {
            (true, _) => Ok(()),
            (false, true) if right == Right::MOVED => Err(NotTheirs::Borrowed(count, start)),
            (false, true) => Ok(()),
            (false, false) => Err(NotTheirs::Elsewhere(count, start)),
        }
    }
}

/// Sorted, and those that touch or overlap made one.
fn joined(mut chunks: Vec<Chunk>) -> Vec<Chunk> {
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
    fn nonsense_is_told_apart() {
        let reach = Reach::new(&[chunk((1, 4)), chunk((5, 3))]);
        assert_eq!(reach.check(&pages(1, 7, Right::MOVED)), Ok(()));
        assert_eq!(
            reach.check(&pages(1, 0, Right::LENT)),
            Err(NotTheirs::Nonsense(0, PAGE))
        );
        assert_eq!(
            reach.check(&pages(1, 1, Right(9))),
            Err(NotTheirs::Right(9))
        );
        let last = u64::MAX / PAGE;
        let beyond = reach.check(&pages(last, 2, Right::LENT));
        assert_eq!(beyond, Err(NotTheirs::Nonsense(2, last * PAGE)));
        let crooked = Pages {
            start: PAGE + 1,
            ..pages(1, 1, Right::LENT)
        };
        assert!(matches!(
            reach.check(&crooked),
            Err(NotTheirs::Nonsense(..))
        ));
    }

    proptest! {
        #[test]
        fn as_a_set_of_pages_would_say(
            own in prop::collection::vec((0_u64..60, 0_u64..9), 0..6),
            granted in prop::collection::btree_set(0_u64..60, 0..20),
            first in 0_u64..70,
            count in 1_u32..8,
            moved in any::<bool>(),
        ) {
            let mut reach = Reach::new(&own.iter().copied().map(chunk).collect::<Vec<_>>());
            reach.grant(&granted.iter().map(|page| page * PAGE).collect::<Vec<_>>());
            let own: BTreeSet<u64> = own.iter().flat_map(|&(first, count)| first..first + count).collect();
            let named = first..first + u64::from(count);
            let is_own = named.clone().all(|page| own.contains(&page));
            let is_granted = named.clone().all(|page| granted.contains(&page));
            let right = if moved { Right::MOVED } else { Right::LENT };
            let allowed = is_own || (is_granted && !moved);
            prop_assert_eq!(reach.check(&pages(first, count, right)).is_ok(), allowed);
            reach.take_all();
            prop_assert_eq!(reach.check(&pages(first, count, right)).is_ok(), is_own);
        }
    }
}

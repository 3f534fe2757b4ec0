//! Replaying transactions after a crash.

use std::collections::BTreeMap;

use super::Journal;
use super::format::{Header, Tag, kind, unescape};
use crate::block::BlockDevice;
use crate::ext4::cache::Cache;
use crate::ext4::error::{Error, Result};

/// Where in the journal the last content of blocks is.
type Found = BTreeMap<u64, (u32, u32, Tag)>;

/// A transaction of which no commit block was found so far.
#[derive(Default)]
struct Transaction {
    writes: Vec<(u32, Tag)>,
    revoked: Vec<u64>,
}

impl Journal {
    /// Writes what complete transactions have changed to its place, and has the next transaction have
    /// a number that none had.
    pub(super) fn replay<D: BlockDevice>(
        &mut self,
        cache: &mut Cache<D>,
        start: u32,
        blocks: u64,
    ) -> Result<()> {
        let found = self.scan(cache, start)?;
        for (block, (sequence, at, tag)) in found {
            if block >= blocks {
                return Err(Error::Damaged("a block in the journal"));
            }
            let mut bytes = cache.read(self.block(at)?)?;
            if !self.format.is_intact(sequence, &tag, &bytes) {
                return Err(Error::Damaged("checksum of a block in the journal"));
            }
            if tag.is_escaped {
                unescape(&mut bytes);
            }
            cache.write(block, &bytes)?;
        }
        // Of the next number there may be parts that were written before the crash.
        self.sequence = self.sequence.wrapping_add(1);
        cache.flush()
    }

    /// Finds all complete transactions. Each later one supersedes what earlier ones have of a block; of
    /// revoked blocks nothing is written that is not later.
    fn scan<D: BlockDevice>(&mut self, cache: &mut Cache<D>, start: u32) -> Result<Found> {
        let (mut found, mut running) = (Found::new(), Transaction::default());
        let (mut at, mut left) = (start, self.length());
        loop {
            let bytes = cache.read(self.block(at)?)?;
            let passed = match Header::kind(&bytes, self.sequence) {
                Some(kind::DESCRIPTOR) => match self.format.tags_of(&bytes) {
                    Some(tags) => self.add(&mut running, at, tags),
                    None => break,
                },
                Some(kind::REVOCATION) => match self.format.revocations_of(&bytes) {
                    Some(revoked) => {
                        running.revoked.extend(revoked);
                        1
                    }
                    None => break,
                },
                Some(kind::COMMIT) if self.format.is_commit(&bytes) => {
                    self.end(std::mem::take(&mut running), &mut found);
                    1
                }
                _ => break,
            };
            // More than the journal has is none.
            match left.checked_sub(passed) {
                Some(rest @ 1..) => left = rest,
                _ => break,
            }
            at = (0..passed).fold(at, |at, _| self.after(at));
        }
        Ok(found)
    }

    /// Notes blocks behind a descriptor block. Returns how many blocks they are with it.
    fn add(&self, running: &mut Transaction, descriptor: u32, tags: Vec<Tag>) -> u32 {
        let count = tags.len() as u32;
        let mut at = descriptor;
        for tag in tags {
            at = self.after(at);
            running.writes.push((at, tag));
        }
        1 + count
    }

    fn end(&mut self, transaction: Transaction, found: &mut Found) {
        for (at, tag) in transaction.writes {
            found.insert(tag.block, (self.sequence, at, tag));
        }
        for block in transaction.revoked {
            found.remove(&block);
        }
        self.sequence = self.sequence.wrapping_add(1);
    }
}

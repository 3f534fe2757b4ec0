//! Transactions: changes that a crash leaves all or none of.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::Ext4;
use super::error::{Error, Result};
use crate::block::BlockDevice;

/// Longest time until a change is committed, as Linux has it.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time until what a program has stored in a mapped file is written, as Linux' `dirty_expire_centisecs`.
const STORE_INTERVAL: Duration = Duration::from_secs(30);

impl<D: BlockDevice> Ext4<D> {
    /// Makes one step, after which the file system is consistent. If it fails after it has changed
    /// something, it is the last one.
    pub(super) fn attempt<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.stopped.is_some() {
            return Err(Errno::EROFS.into());
        }
        let is_large = self.cache.metadata().len() >= self.journal.transaction_max();
        if is_large || self.is_due() {
            self.commit()?;
        }
        let before = self.cache.changes();
        let result = step(self);
        if self.cache.changes() != before {
            self.stopped = result.as_ref().err().cloned();
            self.note_change();
        }
        result
    }

    /// Notes that there is something to commit.
    pub(super) fn note_change(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    /// Whether what was changed has waited long enough.
    fn is_due(&self) -> bool {
        let is_changed = self.began.map(|began| began.elapsed());
        let may_be_stored = self.cache.has_pinned() && self.committed.elapsed() >= STORE_INTERVAL;
        may_be_stored || is_changed.is_some_and(|since| since >= COMMIT_INTERVAL)
    }

    /// Commits what was changed if it has waited for longer than five seconds, as Linux does. To be
    /// called now and then; calls that change something do so, too.
    ///
    /// # Errors
    /// As of [`Ext4::commit`].
    pub fn commit_if_due(&mut self) -> std::result::Result<(), Error> {
        match self.stopped.is_none() && self.is_due() {
            true => self.commit(),
            false => Ok(()),
        }
    }

    /// Returns why nothing can be changed any more, if that is so.
    #[must_use]
    pub fn stopped(&self) -> Option<&Error> {
        self.stopped.as_ref()
    }

    /// Commits what was changed: it survives a crash then.
    ///
    /// # Errors
    /// [`Error::Device`]. Nothing can be changed any more then.
    pub fn commit(&mut self) -> std::result::Result<(), Error> {
        if self.stopped.is_some() {
            return Err(Errno::EROFS.into());
        }
        let result = self.commit_all();
        self.stopped = result.as_ref().err().cloned();
        result
    }

    fn commit_all(&mut self) -> Result<()> {
        self.cache.note_stores();
        self.store_groups()?;
        self.store_superblock()?;
        if !self.cache.metadata().is_empty() || !self.revoked.is_empty() {
            self.journal.commit(&mut self.cache, &self.revoked)?;
        } else if self.cache.is_dirty() {
            self.cache.write_data()?;
            self.cache.flush()?;
        }
        self.freed.clear();
        self.revoked.clear();
        self.began = None;
        self.committed = Instant::now();
        Ok(())
    }
}

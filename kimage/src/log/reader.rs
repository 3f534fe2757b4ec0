//! Reading records one after the other, while the kernel writes.

use super::error::LogError;
use super::layout::LogLayout;
use super::placement::Placement;
use super::record::Record;
use super::ring::{Ring, Slot};
use crate::memory::PhysicalMemory;
use std::collections::VecDeque;

/// Records skipped in one call, before it returns that there is none for now.
const STEPS_MAX: u64 = 1 << 20;

/// Reads the log of a kernel, record by record.
///
/// A reader never disturbs the kernel, and keeps up with its writing: records that were overwritten
/// before they could be read are counted in [`lost`](Self::lost). A hostile kernel can put anything
/// in its log, but cannot make a call of this reader endless or use more than a few hundred KiB.
pub struct LogReader<'a, M: ?Sized> {
    layout: &'a LogLayout,
    memory: &'a M,
    physical: u64,
    /// Number of the next record to read.
    seq: u64,
    lost: u64,
    stopped: bool,
}

impl<'a, M: PhysicalMemory + ?Sized> LogReader<'a, M> {
    /// A reader of the kernel of `layout` at `placement`, starting with its first record.
    pub fn new(layout: &'a LogLayout, placement: Placement, memory: &'a M) -> Self {
        Self {
            layout,
            memory,
            physical: placement.physical,
            seq: 0,
            lost: 0,
            stopped: false,
        }
    }

    /// Moves to record number `seq`: the next read returns it, or the first one after it that still
    /// exists.
    pub fn seek(&mut self, seq: u64) {
        self.seq = seq;
    }

    /// Number of the next record to read: one more than that of the last.
    pub fn position(&self) -> u64 {
        self.seq
    }

    /// Number of records skipped so far: overwritten, without room, or (of a stopped kernel)
    /// unfinished.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Sets whether the kernel has stopped for good. Then records that it could have extended count
    /// as finished, and those after an unfinished one are read.
    pub fn set_stopped(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// The next record; `None` when there is none yet. May be called again later.
    ///
    /// # Errors
    /// [`LogError`] when the log is not at its address: the kernel has overwritten it, or is not
    /// there any more.
    pub fn next_record(&mut self) -> Result<Option<Record>, LogError> {
        self.next_within(STEPS_MAX)
    }

    /// The last `count` records, oldest first; earlier ones are skipped.
    ///
    /// # Errors
    /// As for [`next_record`](Self::next_record).
    pub fn last(&mut self, count: usize) -> Result<Vec<Record>, LogError> {
        let mut last = VecDeque::new();
        // Bounded, since a kernel may write faster than this reads.
        let capacity = Ring::attach(self.layout, self.memory, self.physical)?.capacity();
        for _ in 0..2 * capacity {
            let Some(record) = self.next_record()? else {
                break;
            };
            last.push_back(record);
            if last.len() > count {
                last.pop_front();
            }
        }
        Ok(last.into())
    }

    /// The next record, after at most `steps` attempts.
    pub(super) fn next_within(&mut self, steps: u64) -> Result<Option<Record>, LogError> {
        // Read each time: early in its boot the kernel may change to a larger ring.
        let ring = Ring::attach(self.layout, self.memory, self.physical)?;
        for _ in 0..steps {
            match ring.slot(self.seq, self.stopped)? {
                Slot::Whole(record) => {
                    self.seq += 1;
                    return Ok(Some(record));
                }
                Slot::Lost => self.pass_over_to(self.seq + 1),
                Slot::Other => match self.next_present(&ring)? {
                    Some(seq) => self.pass_over_to(seq),
                    None => return Ok(None),
                },
            }
        }
        Ok(None)
    }

    /// Where to continue when the next record is missing: at the oldest one, if that is later;
    /// otherwise, if nobody will finish the missing one, after it.
    fn next_present(&self, ring: &Ring<'_, M>) -> Result<Option<u64>, LogError> {
        let Some(first) = ring.first_seq()? else {
            return Ok(None);
        };
        if first > self.seq {
            return Ok(Some(first));
        }
        let newest = first.saturating_add(ring.len()?.saturating_sub(1));
        Ok((self.stopped && self.seq < newest).then(|| self.seq + 1))
    }

    fn pass_over_to(&mut self, seq: u64) {
        self.lost = self.lost.saturating_add(seq - self.seq);
        self.seq = seq;
    }
}

//! Queues of pending signals.

use alloc::vec::Vec;

use crate::hw::memory::room::reserve_in;
use crate::model::signals::info::Info;
use crate::model::signals::set::{REALTIME_MIN, SYNCHRONOUS, Set, bit};

/// Maximum number of signals in a queue; on Linux the limit is per user.
pub(super) const QUEUE_MAX: usize = 1024;

/// Queue of pending signals.
#[derive(Debug, Default)]
pub(super) struct PendingQueue {
    pub(super) infos: Vec<Info>,
}

impl PendingQueue {
    pub(super) fn set(&self) -> Set {
        self.infos
            .iter()
            .fold(0, |set, info| set | bit(info.signal))
    }

    /// Queues a signal; a standard signal is queued at most once. Returns whether there was room.
    pub(super) fn push(&mut self, info: Info) -> bool {
        if info.signal < REALTIME_MIN && self.set() & bit(info.signal) != 0 {
            return true;
        }
        if self.merge_timer_overrun(&info) {
            return true;
        }
        // Standard signals always fit: there is reserved room for one of each.
        let unqueued = REALTIME_MIN as usize;
        let room = info.signal < REALTIME_MIN
            || self.infos.len() < QUEUE_MAX && reserve_in(&mut self.infos, unqueued).is_ok();
        if room {
            self.infos.push(info);
        }
        room
    }

    /// Merges the signal of a timer whose last signal is still queued: adds to its overrun count.
    /// Returns whether it did.
    fn merge_timer_overrun(&mut self, info: &Info) -> bool {
        let is_same = |other: &&mut Info| {
            let timer = |info: &Info| (info.signal, info.code, info.fields[0] as u32);
            timer(other) == timer(info)
        };
        if info.code != Info::TIMER {
            return false;
        }
        let waiting = self.infos.iter_mut().find(is_same);
        waiting.is_some_and(|waiting| {
            let more = (info.fields[0] >> 32) + 1;
            let count = (waiting.fields[0] >> 32).saturating_add(more);
            let overruns = count.min(i32::MAX as u64);
            waiting.fields[0] = waiting.fields[0] & 0xffff_ffff | overruns << 32;
            true
        })
    }

    /// Dequeues a signal of a set: synchronous ones first, then the lowest number.
    pub(super) fn take(&mut self, wanted: Set) -> Option<Info> {
        let order = |info: &Info| (SYNCHRONOUS & bit(info.signal) == 0, info.signal);
        let infos = self.infos.iter().enumerate();
        let first = infos
            .filter(|(_, info)| wanted & bit(info.signal) != 0)
            .min_by_key(|(_, info)| order(info));
        let at = first.map(|(at, _)| at)?;
        Some(self.infos.remove(at))
    }

    pub(super) fn drop_all(&mut self, signal: u32) {
        self.infos.retain(|info| info.signal != signal);
    }
}

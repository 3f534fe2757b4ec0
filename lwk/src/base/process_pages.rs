//! The pages of a process in the delegation area.

use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use insula_abi::lwk::{MAY_MAP_SHIFT, MayMap, PINNED_MAX, Process, QUEUE, Signal, process_state};

use crate::base::area::DelegationArea;
use crate::model::window_bits::WindowBits;

/// The two pages of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessPages {
    area: DelegationArea,
    page: u64,
}

impl ProcessPages {
    /// Returns the pages at a number for which [`DelegationArea::can_hold_process`] holds.
    #[must_use]
    pub fn at(area: DelegationArea, page: u64) -> Self {
        Self { area, page }
    }

    /// Returns the number of the process.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.page
    }

    /// Returns the area.
    #[must_use]
    pub fn area(&self) -> DelegationArea {
        self.area
    }

    pub(super) fn word(&self, offset: usize) -> &'static AtomicU64 {
        self.area.word(self.page, offset)
    }

    pub(super) fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Returns the base's state of the process: one of `base_state`.
    #[must_use]
    pub fn base_state(&self) -> u64 {
        self.load(offset_of!(Process, base_state))
    }

    /// Returns the number of its first slot.
    #[must_use]
    pub fn slot(&self) -> u64 {
        self.load(offset_of!(Process, slot))
    }

    /// Returns the program's process id.
    #[must_use]
    pub fn pid(&self) -> u64 {
        self.load(offset_of!(Process, pid))
    }

    /// Returns the number of the process that forked it; 0 if it is to load a program.
    #[must_use]
    pub fn parent(&self) -> u64 {
        self.load(offset_of!(Process, parent))
    }

    /// Returns this kernel's state of the process: one of `process_state`.
    #[must_use]
    pub fn state(&self) -> u64 {
        self.load(offset_of!(Process, lwk_state))
    }

    /// Returns the program's part of the address space.
    #[must_use]
    pub fn bounds(&self) -> (u64, u64) {
        (
            self.load(offset_of!(Process, mirror_start)),
            self.load(offset_of!(Process, mirror_end)),
        )
    }

    /// Returns the size of its arguments, in bytes.
    #[must_use]
    pub fn arguments_size(&self) -> u64 {
        self.load(offset_of!(Process, arguments_size))
    }

    /// Returns the address at which the state of a running process can be copied; 0 if a program is to
    /// be loaded.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.load(offset_of!(Process, running))
    }

    /// Whether the program is to leave the node.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.load(offset_of!(Process, leave)) != 0
    }

    /// Tells the base where the state is of a program that leaves: an address in the program, and a
    /// size. An address of 0: not yet; a size of 0: it cannot leave.
    pub fn set_left(&self, (address, size): (u64, u64)) {
        self.word(offset_of!(Process, left_size))
            .store(size, Ordering::Relaxed);
        self.word(offset_of!(Process, left))
            .store(address, Ordering::Release);
    }

    /// Returns the descriptor number of the proxy's mm mirror, which is not a file of the program.
    #[must_use]
    pub fn mirror_fd(&self) -> u64 {
        self.load(offset_of!(Process, descriptor))
    }

    /// Returns the ticket of the last completed invalidation.
    #[must_use]
    pub fn invalidated(&self) -> u64 {
        self.load(offset_of!(Process, invalidated))
    }

    /// Returns the physical addresses of its frames that were pinned at the last invalidation;
    /// `None` if there are more than the base can list.
    #[must_use]
    pub fn pinned(&self) -> Option<Vec<u64>> {
        let count = self.load(offset_of!(Process, pinned_count));
        let count = usize::try_from(count)
            .ok()
            .filter(|&count| count <= PINNED_MAX)?;
        let frame = |index| self.load(offset_of!(Process, pinned) + 8 * index);
        Some((0..count).map(frame).collect())
    }

    /// Sets this kernel's state of the process: one of `process_state`.
    pub fn set_state(&self, state: u64) {
        self.word(offset_of!(Process, lwk_state))
            .store(state, Ordering::Release);
    }

    /// Tells the base that no thread of the process will run any more, unless it is reaped already.
    pub fn set_stopped(&self) {
        let state = self.word(offset_of!(Process, lwk_state));
        let (alive, stopped) = (process_state::ALIVE, process_state::STOPPED);
        let _ = state.compare_exchange(alive, stopped, Ordering::Release, Ordering::Relaxed);
    }

    /// Sets the root of the program's page table; 0 for none.
    pub fn set_page_table(&self, root: u64) {
        self.word(offset_of!(Process, page_table))
            .store(root, Ordering::Release);
    }

    /// Takes the signals that did not fit into the queue, one bit for each.
    #[must_use]
    pub fn take_overflowed_signals(&self) -> u64 {
        let signals = self.word(offset_of!(Process, signals_overflow));
        match signals.load(Ordering::Relaxed) {
            0 => 0,
            _ => signals.swap(0, Ordering::AcqRel),
        }
    }

    /// Whether signals have arrived.
    #[must_use]
    pub fn has_signals(&self) -> bool {
        let dequeued = self
            .word(offset_of!(Process, signals_dequeued))
            .load(Ordering::Relaxed);
        self.load(offset_of!(Process, signals_queued)) != dequeued
            || self.load(offset_of!(Process, signals_overflow)) != 0
    }

    /// Whether the base has stopped the proxy.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.load(offset_of!(Process, stopped)) != 0
    }

    /// Dequeues a signal. One caller at a time.
    #[must_use]
    pub fn dequeue_signal(&self) -> Option<Signal> {
        let dequeued = self.word(offset_of!(Process, signals_dequeued));
        let count = dequeued.load(Ordering::Relaxed);
        if self.load(offset_of!(Process, signals_queued)) == count {
            return None;
        }
        let place = (count % QUEUE as u64) as usize * size_of::<Signal>();
        let words: [u64; size_of::<Signal>() / 8] =
            core::array::from_fn(|at| self.load(offset_of!(Process, queue) + place + 8 * at));
        // From here on the base may queue an equal signal: it is a new one.
        dequeued.store(count.wrapping_add(1), Ordering::Release);
        let low = |word: u64| word as u32;
        let high = |word: u64| (word >> 32) as u32;
        let [first, second, fields @ ..] = words;
        Some(Signal {
            signal: low(first) as i32,
            error: high(first) as i32,
            code: low(second) as i32,
            thread: high(second),
            fields,
        })
    }

    /// Returns the signals that the program initially ignores and blocks, one bit for each.
    #[must_use]
    pub fn inherited_signals(&self) -> (u64, u64) {
        (
            self.load(offset_of!(Process, ignored)),
            self.load(offset_of!(Process, blocked)),
        )
    }

    /// Returns the address of slot 0 in the proxy; 0 if it is not set.
    #[must_use]
    pub(super) fn slots(&self) -> u64 {
        self.load(offset_of!(Process, slots))
    }

    /// Whether the base may have mapped anything from `start` to before `end`, or may be walking
    /// the page table there. If not, it will not find what was unmapped before.
    #[must_use]
    pub fn may_be_mapped(&self, start: u64, end: u64) -> bool {
        fence(Ordering::SeqCst);
        let (first, last) = (start >> MAY_MAP_SHIFT, (end - 1) >> MAY_MAP_SHIFT);
        // The bitmap covers 64 GiB; beyond, windows share bits.
        const WINDOWS: u64 = 8 * size_of::<MayMap>() as u64;
        WindowBits::of(first, last, WINDOWS).any(|(word, mask)| {
            let word = self.area.word(self.page + 1, 8 * word);
            word.load(Ordering::Relaxed) & mask != 0
        })
    }
}

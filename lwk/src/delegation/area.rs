//! The delegation area, and the pages of a process in it.

#![allow(unsafe_code, reason = "the area is memory shared with the base")]

use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use insula_abi::channel::{
    AreaHeader, CHANNEL_MAGIC, DOORBELL_APIC_SHIFT, DOORBELL_VALID, DOORBELL_VECTOR_MASK, area_size,
};
use insula_abi::lwk::{
    COUNTERS_PAGES, Calls, Clock, Counters, Delegation, LWK_MAGIC, MAY_MAP_SHIFT, MayMap,
    PAGE_SIZE, PAGES_MAX, PINNED_MAX, Process, QUEUE, SLOTS_PER_PAGE, Signal,
};
use insula_bare::apic;
use insula_bare::memory::{PhysAddr, word};

use crate::boot_info::MemoryRange;
use crate::clock;

/// The delegation area.
#[derive(Clone, Copy, Debug)]
pub struct DelegationArea {
    start: u64,
    pages: u64,
}

impl DelegationArea {
    /// Finds the area in the memory shared with the base: it follows the channels.
    #[must_use]
    pub fn find(shared: MemoryRange) -> Option<Self> {
        let all = Self {
            start: shared.start,
            pages: shared.size / PAGE_SIZE,
        };
        let header = |at: usize| all.word(0, at).load(Ordering::Acquire);
        if shared.size < PAGE_SIZE || header(offset_of!(AreaHeader, magic)) != CHANNEL_MAGIC {
            return None;
        }
        // Each of the two words holds two 32-bit fields: revision and count; slots.
        let count = header(offset_of!(AreaHeader, revision)) >> 32;
        let slots = header(offset_of!(AreaHeader, slots)) as u32;
        let channels = area_size(count as u32, slots);
        let rest = shared.size.checked_sub(channels)?;
        let area = Self {
            start: shared.start + channels,
            pages: rest / PAGE_SIZE,
        };
        if area.pages == 0
            || area
                .header(offset_of!(Delegation, magic))
                .load(Ordering::Acquire)
                != LWK_MAGIC
        {
            return None;
        }
        let announced = area
            .header(offset_of!(Delegation, revision))
            .load(Ordering::Acquire)
            >> 32;
        let pages = announced.min(u64::from(PAGES_MAX)).min(area.pages);
        Some(Self { pages, ..area })
    }

    /// Returns a word of a page.
    pub(super) fn word(&self, page: u64, offset: usize) -> &'static AtomicU64 {
        assert!(page < self.pages && (offset as u64) < PAGE_SIZE);
        // SAFETY: it is memory that the base has set aside for delegation; all accesses go through
        // this function.
        unsafe { word(PhysAddr(self.start + page * PAGE_SIZE + offset as u64)) }
    }

    fn header(&self, offset: usize) -> &'static AtomicU64 {
        self.word(0, offset)
    }

    /// Returns the frame of its first page, which holds the base's clocks.
    #[must_use]
    pub fn header_frame(&self) -> PhysAddr {
        PhysAddr(self.start)
    }

    /// Announces that this kernel accepts processes, with its doorbell.
    pub fn announce(&self, doorbell: u64) {
        self.header(offset_of!(Delegation, lwk_doorbell))
            .store(doorbell, Ordering::Release);
    }

    /// Reads the base's clocks.
    #[must_use]
    pub fn clock(&self) -> BaseClock {
        let word = |offset: usize| {
            let at = offset_of!(Delegation, clock) + offset;
            self.header(at).load(Ordering::Acquire)
        };
        loop {
            let before = word(offset_of!(Clock, sequence));
            let clock = BaseClock {
                tsc: word(offset_of!(Clock, tsc)),
                realtime_ns: word(offset_of!(Clock, realtime_ns)),
                monotonic_ns: word(offset_of!(Clock, monotonic_ns)),
                mult: word(offset_of!(Clock, mult)),
                fraction: word(offset_of!(Clock, fraction)),
                // Read within the sequence: these values are not valid for later times.
                read_at: clock::stamp(),
            };
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && word(offset_of!(Clock, sequence)) == before {
                return clock;
            }
            core::hint::spin_loop();
        }
    }

    /// Takes the numbers of the processes that the base has marked as pending.
    pub fn take_pending_processes(&self, mut look: impl FnMut(u64)) {
        for group in 0..8 {
            let at = offset_of!(Delegation, process_pending) + 8 * group;
            if self.header(at).load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = self.header(at).swap(0, Ordering::AcqRel);
            while bits != 0 {
                look(group as u64 * 64 + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
    }

    /// Increments the word at `offset` in a core's [`Counters`], which only that core writes.
    pub fn count(&self, core: u32, offset: usize) {
        const PER_PAGE: u64 = PAGE_SIZE / size_of::<Counters>() as u64;
        let (page, place) = (u64::from(core) / PER_PAGE, u64::from(core) % PER_PAGE);
        if page + 1 < u64::from(COUNTERS_PAGES) {
            let at = place as usize * size_of::<Counters>() + offset;
            let word = self.word(1 + page, at);
            word.store(
                word.load(Ordering::Relaxed).wrapping_add(1),
                Ordering::Relaxed,
            );
        }
    }

    /// Counts a system call by its number.
    pub fn count_call(&self, number: u64) {
        let at = number as usize * size_of::<u64>();
        if at < size_of::<Calls>() {
            let word = self.word(u64::from(COUNTERS_PAGES), at);
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the two pages of a process can be at `page`.
    #[must_use]
    pub fn can_hold_process(&self, page: u64) -> bool {
        page > u64::from(COUNTERS_PAGES) && page + 1 < self.pages
    }

    /// Whether the base has given a slot to a process.
    #[must_use]
    pub fn slot_belongs_to(&self, slot: u64, process: u64) -> bool {
        self.page_is_of(slot / u64::from(SLOTS_PER_PAGE), process)
    }

    /// Returns the numbers of the base's processes.
    pub fn processes(&self) -> impl Iterator<Item = u64> {
        let pages = (0..self.pages).filter(|&page| self.can_hold_process(page));
        pages.filter(|&page| self.page_is_of(page, page))
    }

    fn page_is_of(&self, page: u64, process: u64) -> bool {
        if page == 0 || page >= self.pages {
            return false;
        }
        let at = offset_of!(Delegation, process_of) + 2 * page as usize;
        let owners = self.header(at & !7).load(Ordering::Acquire);
        owners >> (8 * (at & 7)) & 0xffff == process
    }

    /// Sets a slot's wake bit, and rings the base if no bit of the word was set.
    pub(super) fn ring(&self, slot: u64) {
        let at = offset_of!(Delegation, wake_pending) + 8 * (slot / 64) as usize;
        if self.header(at).fetch_or(1 << (slot % 64), Ordering::AcqRel) == 0 {
            self.ring_base();
        }
    }

    /// Sets a slot's cancel bit, and rings the base.
    pub(super) fn interrupt(&self, slot: u64) {
        let at = offset_of!(Delegation, cancel_pending) + 8 * (slot / 64) as usize;
        self.header(at).fetch_or(1 << (slot % 64), Ordering::AcqRel);
        self.ring_base();
    }

    /// Rings the base, and again if the doorbell moved meanwhile: the old one may belong to a core
    /// that the base has taken offline (`kmod/arch/x86/doorbell.c`).
    fn ring_base(&self) {
        crate::cores::count(crate::cores::Counter::Rings);
        let place = self.header(offset_of!(Delegation, base_doorbell));
        let mut doorbell = place.load(Ordering::Acquire);
        loop {
            if doorbell & DOORBELL_VALID != 0 {
                let vector = (doorbell & DOORBELL_VECTOR_MASK) as u8;
                apic::send_ipi((doorbell >> DOORBELL_APIC_SHIFT) as u32, vector);
            }
            // Ring before checking whether the doorbell has moved.
            fence(Ordering::SeqCst);
            let rung_doorbell = doorbell;
            doorbell = place.load(Ordering::Acquire);
            if doorbell == rung_doorbell {
                return;
            }
        }
    }
}

/// The base's clocks at one reading of the time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BaseClock {
    tsc: u64,
    realtime_ns: u64,
    monotonic_ns: u64,
    /// Nanoseconds per tick, times 2^32.
    mult: u64,
    /// Fraction of both times, in ns times 2^32.
    fraction: u64,
    /// Time stamp counter when this was read.
    read_at: u64,
}

impl BaseClock {
    fn since_ns(&self, stamp: u64) -> u64 {
        let ticks = u128::from(stamp.saturating_sub(self.tsc));
        ((ticks * u128::from(self.mult) + u128::from(self.fraction)) >> 32) as u64
    }

    /// Returns the time stamp counter at the reading; the clocks may be wrong for later times.
    #[must_use]
    pub fn read_at(&self) -> u64 {
        self.read_at
    }

    /// Returns `CLOCK_REALTIME` at a time of the counter.
    #[must_use]
    pub fn realtime_ns(&self, stamp: u64) -> u64 {
        self.realtime_ns.wrapping_add(self.since_ns(stamp))
    }

    /// Returns `CLOCK_MONOTONIC` at a time of the counter.
    #[must_use]
    pub fn monotonic_ns(&self, stamp: u64) -> u64 {
        self.monotonic_ns.wrapping_add(self.since_ns(stamp))
    }
}

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

    fn word(&self, offset: usize) -> &'static AtomicU64 {
        self.area.word(self.page, offset)
    }

    fn load(&self, offset: usize) -> u64 {
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
        let mut windows = (first..=last).take(WINDOWS as usize);
        windows.any(|window| {
            let bit = window % WINDOWS;
            let word = self.area.word(self.page + 1, 8 * (bit / 64) as usize);
            word.load(Ordering::Relaxed) >> (bit % 64) & 1 != 0
        })
    }
}

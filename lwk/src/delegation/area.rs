//! The delegation area, and the pages of a process in it.

#![allow(unsafe_code, reason = "the area is memory that the base writes too")]

use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use insula_abi::channel::{
    AreaHeader, CHANNEL_MAGIC, DOORBELL_APIC_SHIFT, DOORBELL_VALID, DOORBELL_VECTOR_MASK, area_size,
};
use insula_abi::lwk::{
    COUNTERS_PAGES, Calls, Clock, Counters, DESKS_PER_PAGE, Delegation, LWK_MAGIC, PAGE_SIZE,
    PAGES_MAX, PINNED_MAX, Process, QUEUE, REACH_SHIFT, Reach, Signal,
};
use insula_bare::apic;
use insula_bare::memory::{PhysAddr, word};

use crate::clock;
use crate::world::Stretch;

/// The area.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    start: u64,
    pages: u64,
}

impl Area {
    /// The area in the memory that the base shares with this kernel: behind the channels.
    #[must_use]
    pub fn find(shared: Stretch) -> Option<Self> {
        let all = Self {
            start: shared.start,
            pages: shared.size / PAGE_SIZE,
        };
        let header = |at: usize| all.word(0, at).load(Ordering::Acquire);
        if shared.size < PAGE_SIZE || header(offset_of!(AreaHeader, magic)) != CHANNEL_MAGIC {
            return None;
        }
        // Two words of 32 bits each: revision and count, then slots.
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
        let told = area
            .header(offset_of!(Delegation, revision))
            .load(Ordering::Acquire)
            >> 32;
        let pages = told.min(u64::from(PAGES_MAX)).min(area.pages);
        Some(Self { pages, ..area })
    }

    /// A word of a page.
    pub(super) fn word(&self, page: u64, offset: usize) -> &'static AtomicU64 {
        assert!(page < self.pages && (offset as u64) < PAGE_SIZE);
        // SAFETY: it lies in memory that the base has set aside for this, and that is not given to
        // anything else; all of it is reached by this function.
        unsafe { word(PhysAddr(self.start + page * PAGE_SIZE + offset as u64)) }
    }

    fn header(&self, offset: usize) -> &'static AtomicU64 {
        self.word(0, offset)
    }

    /// The frame of its first page, in which the base's clocks lie.
    #[must_use]
    pub fn header_frame(&self) -> PhysAddr {
        PhysAddr(self.start)
    }

    /// Says that this kernel takes processes, and which interrupt it hears.
    pub fn announce(&self, doorbell: u64) {
        self.header(offset_of!(Delegation, lwk_doorbell))
            .store(doorbell, Ordering::Release);
    }

    /// The base's clocks.
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
                // Within: what was told before is not for later times.
                read_at: clock::stamp(),
            };
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && word(offset_of!(Clock, sequence)) == before {
                return clock;
            }
            core::hint::spin_loop();
        }
    }

    /// Takes the numbers of the processes that are to be looked at.
    pub fn take_attention(&self, mut look: impl FnMut(u64)) {
        for group in 0..8 {
            let at = offset_of!(Delegation, attention) + 8 * group;
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

    /// Counts something that a core has done: the word at `offset` in its [`Counters`], which only that
    /// core writes.
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

    /// Counts a system call.
    pub fn count_call(&self, number: u64) {
        let at = number as usize * size_of::<u64>();
        if at < size_of::<Calls>() {
            let word = self.word(u64::from(COUNTERS_PAGES), at);
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a process may lie at a page: it and the next are there, and no others' pages.
    #[must_use]
    pub fn can_hold_process(&self, page: u64) -> bool {
        page > u64::from(COUNTERS_PAGES) && page + 1 < self.pages
    }

    /// Whether a desk is the base's to give to a process.
    #[must_use]
    pub fn desk_is_of(&self, desk: u64, process: u64) -> bool {
        self.page_is_of(desk / u64::from(DESKS_PER_PAGE), process)
    }

    /// The numbers of all processes that the base has.
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

    /// Sets a desk's bit, and rings the base if nobody had rung before.
    pub(super) fn ring(&self, desk: u64) {
        let at = offset_of!(Delegation, rung) + 8 * (desk / 64) as usize;
        if self.header(at).fetch_or(1 << (desk % 64), Ordering::AcqRel) == 0 {
            self.ring_base();
        }
    }

    /// Sets a desk's bit among those whose calls are to be broken off, and rings.
    pub(super) fn interrupt(&self, desk: u64) {
        let at = offset_of!(Delegation, interrupted) + 8 * (desk / 64) as usize;
        self.header(at).fetch_or(1 << (desk % 64), Ordering::AcqRel);
        self.ring_base();
    }

    /// Rings, and again if the doorbell was moved meanwhile: by the old word it may have gone to a
    /// core that the base has switched off (`kmod/arch/x86/doorbell.c`).
    fn ring_base(&self) {
        crate::cores::count(crate::cores::Counter::Rings);
        let place = self.header(offset_of!(Delegation, base_doorbell));
        let mut doorbell = place.load(Ordering::Acquire);
        loop {
            if doorbell & DOORBELL_VALID != 0 {
                let vector = (doorbell & DOORBELL_VECTOR_MASK) as u8;
                apic::interrupt((doorbell >> DOORBELL_APIC_SHIFT) as u32, vector);
            }
            // The ring comes before the look whether the word had moved.
            fence(Ordering::SeqCst);
            let rung_by = doorbell;
            doorbell = place.load(Ordering::Acquire);
            if doorbell == rung_by {
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
    /// Nanoseconds of a tick, times 2^32.
    mult: u64,
    /// Of both times, in nanoseconds times 2^32.
    fraction: u64,
    /// The counter when this was read.
    read_at: u64,
}

impl BaseClock {
    fn since_ns(&self, stamp: u64) -> u64 {
        let ticks = u128::from(stamp.saturating_sub(self.tsc));
        ((ticks * u128::from(self.mult) + u128::from(self.fraction)) >> 32) as u64
    }

    /// The counter when the clocks were read: a later time they may not tell right.
    #[must_use]
    pub fn read_at(&self) -> u64 {
        self.read_at
    }

    /// `CLOCK_REALTIME` at that time of the counter.
    #[must_use]
    pub fn realtime_ns(&self, stamp: u64) -> u64 {
        self.realtime_ns.wrapping_add(self.since_ns(stamp))
    }

    /// `CLOCK_MONOTONIC` at that time of the counter.
    #[must_use]
    pub fn monotonic_ns(&self, stamp: u64) -> u64 {
        self.monotonic_ns.wrapping_add(self.since_ns(stamp))
    }
}

/// The two pages of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessPages {
    area: Area,
    page: u64,
}

impl ProcessPages {
    /// Those at a page, which [`Area::can_hold_process`].
    #[must_use]
    pub fn at(area: Area, page: u64) -> Self {
        Self { area, page }
    }

    /// The number of the process.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.page
    }

    /// The area they are of.
    #[must_use]
    pub fn area(&self) -> Area {
        self.area
    }

    fn word(&self, offset: usize) -> &'static AtomicU64 {
        self.area.word(self.page, offset)
    }

    fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// What the base says of it: one of `base_state`.
    #[must_use]
    pub fn base_state(&self) -> u64 {
        self.load(offset_of!(Process, base_state))
    }

    /// Its first desk.
    #[must_use]
    pub fn desk(&self) -> u64 {
        self.load(offset_of!(Process, desk))
    }

    /// The program's process id.
    #[must_use]
    pub fn pid(&self) -> u64 {
        self.load(offset_of!(Process, pid))
    }

    /// The process that it is a copy of; 0 if it begins with a program.
    #[must_use]
    pub fn parent(&self) -> u64 {
        self.load(offset_of!(Process, parent))
    }

    /// What this kernel has said of it: one of `process_state`.
    #[must_use]
    pub fn state(&self) -> u64 {
        self.load(offset_of!(Process, lwk_state))
    }

    /// The program's part of the address space.
    #[must_use]
    pub fn space(&self) -> (u64, u64) {
        (
            self.load(offset_of!(Process, space_start)),
            self.load(offset_of!(Process, space_end)),
        )
    }

    /// Bytes of its arguments.
    #[must_use]
    pub fn arguments_size(&self) -> u64 {
        self.load(offset_of!(Process, arguments_size))
    }

    /// The number of the proxy's own descriptor, which is no file of the program's.
    #[must_use]
    pub fn descriptor(&self) -> u64 {
        self.load(offset_of!(Process, descriptor))
    }

    /// The ticket of the last release.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.load(offset_of!(Process, released))
    }

    /// The frames of its memory that were pinned at the last release, by physical address; `None` if
    /// there are more than the base can tell.
    #[must_use]
    pub fn pinned(&self) -> Option<Vec<u64>> {
        let count = self.load(offset_of!(Process, pinned_count));
        let count = usize::try_from(count)
            .ok()
            .filter(|&count| count <= PINNED_MAX)?;
        let frame = |index| self.load(offset_of!(Process, pinned) + 8 * index);
        Some((0..count).map(frame).collect())
    }

    /// Tells the base what this kernel has to say: one of `process_state`.
    pub fn set_state(&self, state: u64) {
        self.word(offset_of!(Process, lwk_state))
            .store(state, Ordering::Release);
    }

    /// Tells the base where the program's page table is; 0 for none.
    pub fn set_page_table(&self, root: u64) {
        self.word(offset_of!(Process, page_table))
            .store(root, Ordering::Release);
    }

    /// Takes the signals that came, a bit for each.
    #[must_use]
    pub fn take_signals(&self) -> u64 {
        let signals = self.word(offset_of!(Process, signals));
        match signals.load(Ordering::Relaxed) {
            0 => 0,
            _ => signals.swap(0, Ordering::AcqRel),
        }
    }

    /// Whether signals have come.
    #[must_use]
    pub fn has_signals(&self) -> bool {
        let taken = self
            .word(offset_of!(Process, taken))
            .load(Ordering::Relaxed);
        self.load(offset_of!(Process, told)) != taken
            || self.load(offset_of!(Process, signals)) != 0
    }

    /// Whether the base stops the proxy.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.load(offset_of!(Process, stopped)) != 0
    }

    /// Takes the first of the signals that wait. One caller at a time.
    #[must_use]
    pub fn take_signal(&self) -> Option<Signal> {
        let taken = self.word(offset_of!(Process, taken));
        let count = taken.load(Ordering::Relaxed);
        if self.load(offset_of!(Process, told)) == count {
            return None;
        }
        let place = (count % QUEUE as u64) as usize * size_of::<Signal>();
        let words: [u64; size_of::<Signal>() / 8] =
            core::array::from_fn(|at| self.load(offset_of!(Process, queue) + place + 8 * at));
        // From here on one more like it is told of: it is another one, which this has not seen.
        taken.store(count.wrapping_add(1), Ordering::Release);
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

    /// The signals that the program ignores at its beginning, and those that it blocks: a bit for each.
    #[must_use]
    pub fn inherited_signals(&self) -> (u64, u64) {
        (
            self.load(offset_of!(Process, ignored)),
            self.load(offset_of!(Process, blocked)),
        )
    }

    /// Where desk 0 would lie in the proxy; 0 if nobody has said.
    #[must_use]
    pub(super) fn desks(&self) -> u64 {
        self.load(offset_of!(Process, desks))
    }

    /// Whether the base may have mapped, or be walking to, anything from `start` to before `end`.
    /// What was taken out of the page table before is not found by it any more.
    #[must_use]
    pub fn is_reached(&self, start: u64, end: u64) -> bool {
        fence(Ordering::SeqCst);
        let (first, last) = (start >> REACH_SHIFT, (end - 1) >> REACH_SHIFT);
        // The bitmap stands for 64 GiB; beyond, windows share bits.
        const WINDOWS: u64 = 8 * size_of::<Reach>() as u64;
        let mut windows = (first..=last).take(WINDOWS as usize);
        windows.any(|window| {
            let bit = window % WINDOWS;
            let word = self.area.word(self.page + 1, 8 * (bit / 64) as usize);
            word.load(Ordering::Relaxed) >> (bit % 64) & 1 != 0
        })
    }
}

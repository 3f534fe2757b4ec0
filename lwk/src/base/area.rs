//! The delegation area: memory shared with the base.

#![allow(unsafe_code, reason = "the area is memory shared with the base")]

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use insula_abi::channel::{
    AreaHeader, CHANNEL_MAGIC, DOORBELL_APIC_SHIFT, DOORBELL_VALID, DOORBELL_VECTOR_MASK, area_size,
};
use insula_abi::lwk::{
    COUNTERS_PAGES, Calls, Clock, Counters, Delegation, LWK_MAGIC, MAPS_PAGE, Maps, PAGE_SIZE,
    PAGES_MAX, PAGES_MIN, PROCESS_PAGE, SLOTS_PER_PAGE,
};
use insula_bare::apic;
use insula_bare::memory::{PhysAddr, word};
use spin::Once;

use crate::base::clock::BaseClock;
use crate::hw::boot_info::memory_map::MemoryRange;
use crate::hw::clock;
use crate::hw::cores::{doorbell, number};
use crate::hw::interrupts::mark_doorbell;

/// The delegation area.
#[derive(Clone, Copy, Debug)]
pub struct DelegationArea {
    start: u64,
    pages: u64,
}

static AREA: Once<DelegationArea> = Once::new();

/// Returns this node's area, if the base may start processes.
pub(crate) fn area() -> Option<DelegationArea> {
    AREA.get().copied()
}

/// Lets the base start processes from now on.
pub(crate) fn accept_processes(area: DelegationArea) {
    AREA.call_once(|| area);
    area.announce(doorbell());
    mark_doorbell();
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
        (pages >= u64::from(PAGES_MIN)).then_some(Self { pages, ..area })
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

    /// Returns a word of [`Maps`].
    fn map_word(&self, offset: usize) -> &'static AtomicU64 {
        let page = u64::from(MAPS_PAGE) + offset as u64 / PAGE_SIZE;
        self.word(page, offset % PAGE_SIZE as usize)
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
        const SUMMARY: usize = offset_of!(Delegation, process_summary);
        for group in 0..4 {
            take_bits(self.header(SUMMARY + 8 * group), |word| {
                let word = group as u64 * 64 + word;
                let at = offset_of!(Maps, process_pending) + 8 * word as usize;
                take_bits(self.map_word(at), |bit| look(word * 64 + bit));
            });
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
        page >= u64::from(PROCESS_PAGE) && page + 1 < self.pages
    }

    /// Whether the base has given a slot to a process.
    #[must_use]
    pub fn slot_belongs_to(&self, slot: u64, process: u64) -> bool {
        self.page_is_of(slot / u64::from(SLOTS_PER_PAGE), process)
    }

    /// Returns the numbers of the base's processes.
    pub fn processes(&self) -> impl Iterator<Item = u64> {
        // Four pages at once: there may be thousands, and most are free.
        let words = (0..self.pages.div_ceil(4)).map(|word| (4 * word, self.owners(4 * word)));
        let used = words.filter(|&(_, owners)| owners != 0);
        let pages = used.flat_map(|(first, owners)| {
            (0..4).map(move |index| (first + index, owners >> (16 * index) & 0xffff))
        });
        let processes = pages.filter(|&(page, owner)| page == owner);
        processes
            .map(|(page, _)| page)
            .filter(|&page| self.can_hold_process(page))
    }

    /// Returns the owners of four pages, 16 bits for each; `page` is a multiple of four.
    fn owners(&self, page: u64) -> u64 {
        let at = offset_of!(Maps, process_of) + 2 * page as usize;
        self.map_word(at).load(Ordering::Acquire)
    }

    fn page_is_of(&self, page: u64, process: u64) -> bool {
        if page == 0 || page >= self.pages {
            return false;
        }
        self.owners(page & !3) >> (16 * (page & 3)) & 0xffff == process
    }

    /// Sets a slot's wake bit, and rings the base if it was not about to be rung.
    pub(super) fn ring(&self, slot: u64) {
        const PLACE: (usize, usize) = (
            offset_of!(Delegation, wake_summary),
            offset_of!(Maps, wake_pending),
        );
        if self.set_pending(PLACE, slot) {
            self.ring_base();
        }
    }

    /// Sets a slot's cancel bit, and rings the base if it was not about to be rung.
    pub(super) fn interrupt(&self, slot: u64) {
        const PLACE: (usize, usize) = (
            offset_of!(Delegation, cancel_summary),
            offset_of!(Maps, cancel_pending),
        );
        if self.set_pending(PLACE, slot) {
            self.ring_base();
        }
    }

    /// Sets a bit of a bitmap and, if it is the first of its word, the word's in the summary.
    /// Returns whether it is the first.
    fn set_pending(&self, (summary, bitmap): (usize, usize), bit: u64) -> bool {
        let set = |word: &AtomicU64, bit: u64| word.fetch_or(1 << (bit % 64), Ordering::AcqRel);
        let word = bit / 64;
        if set(self.map_word(bitmap + 8 * word as usize), bit) != 0 {
            return false;
        }
        set(self.header(summary + 8 * (word / 64) as usize), word);
        true
    }

    /// Rings the base, and again if the doorbell moved meanwhile: the old one may belong to a core
    /// that the base has taken offline (`kmod/arch/x86/doorbell.c`).
    pub(super) fn ring_base(&self) {
        self.count(number(), offset_of!(Counters, rings));
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

/// Takes the bits of a word.
fn take_bits(word: &AtomicU64, mut look: impl FnMut(u64)) {
    if word.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut bits = word.swap(0, Ordering::AcqRel);
    while bits != 0 {
        look(u64::from(bits.trailing_zeros()));
        bits &= bits - 1;
    }
}

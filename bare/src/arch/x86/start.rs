//! Bringing up the kernel's other cores.
//!
//! A start-up IPI begins in a page below 1 MiB, of which every node has some of its own. The code
//! there (`boot.S`) needs, besides its page, a page table below 4 GiB that maps it one to one.

use super::apic;
use super::cpu;
use super::paging::{Flags, MapError, Page, PageSize, PageTable};
use crate::memory::{self, FRAME_SIZE, Frames, PhysAddr};

/// Pages of low memory that are needed: code, and a page table of three levels.
pub const LOW_PAGES: u64 = 4;
/// Where the parameters lie in the page: START_* of boot.S.
const PARAMETERS: u64 = 0xf00;
/// After INIT, as Intel advises for old processors.
const INIT_WAIT_US: u64 = 10_000;
/// How long a core may take to be there, before it is sent a second start-up IPI, and after.
const START_PATIENCE_US: u64 = 2_000_000;

/// The core did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent;

/// Where other cores are started.
#[derive(Debug)]
pub struct Launchpad {
    page: PhysAddr,
    tsc_khz: u32,
}

/// A core to start.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// The id of its local APIC.
    pub apic_id: u32,
    /// The end of its stack, as the kernel sees it.
    pub stack_end: u64,
    /// What it calls, in the kernel, with this argument. It never returns.
    pub entry: extern "C" fn(u64) -> !,
    /// The argument.
    pub argument: u64,
}

/// The code, with the addresses of its two later parts relative to the first.
#[cfg(target_os = "none")]
fn code() -> (&'static [u8], u64, u64) {
    unsafe extern "C" {
        static bare_trampoline: u8;
        static bare_trampoline_32: u8;
        static bare_trampoline_64: u8;
        static bare_trampoline_end: u8;
    }
    // SAFETY: only addresses are taken, and the bytes between them are constants of the image.
    unsafe {
        let start = &raw const bare_trampoline;
        let size = (&raw const bare_trampoline_end).offset_from(start) as usize;
        (
            core::slice::from_raw_parts(start, size),
            (&raw const bare_trampoline_32).offset_from(start) as u64,
            (&raw const bare_trampoline_64).offset_from(start) as u64,
        )
    }
}

#[cfg(not(target_os = "none"))]
fn code() -> (&'static [u8], u64, u64) {
    (&[], 0, 0)
}

impl Launchpad {
    /// Prepares the pages from `low` on. They are also mapped one to one in the kernel's own table,
    /// until [`Launchpad::close`].
    ///
    /// # Safety
    /// `LOW_PAGES` pages from `low` on, below 640 KiB, are this kernel's and free.
    ///
    /// # Errors
    /// [`MapError`].
    pub unsafe fn open(
        low: PhysAddr,
        kernel: &mut PageTable,
        frames: &mut dyn Frames,
        tsc_khz: u32,
    ) -> Result<Self, MapError> {
        let page = Page {
            start: low.0,
            frame: low,
            size: PageSize::Small,
            flags: Flags::WRITABLE,
        };
        kernel.map(page, frames)?;
        let (code, code32, code64) = code();
        let table = |number: u64| low.0 + number * FRAME_SIZE;
        let leads_to = |address: u64, flags: u64| address | flags | 0x3;
        const LARGE: u64 = 0x80;
        // SAFETY: all within the pages that the caller gave.
        unsafe {
            memory::clear(low, LOW_PAGES * FRAME_SIZE);
            memory::write(low, code);
            for (at, value) in [
                (table(1), leads_to(table(2), 0)),
                (table(2), leads_to(table(3), 0)),
                (table(3), leads_to(0, LARGE)),
            ] {
                memory::write(PhysAddr(at), &value.to_le_bytes());
            }
        }
        let pad = Self { page: low, tsc_khz };
        // Flat segments: 32-bit code, 64-bit code, data.
        const SEGMENTS: [u64; 4] = [
            0,
            0x00cf_9b00_0000_ffff,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
        ];
        let segments = low.0 + PARAMETERS + 0x80;
        for (number, segment) in (0..).zip(SEGMENTS) {
            pad.put(0x80 + 8 * number, segment);
        }
        pad.put(0x00, table(1));
        pad.put(0x08, kernel.root().0);
        pad.put(0x28, (low.0 + code32) | 0x08 << 32);
        pad.put(0x30, (low.0 + code64) | 0x10 << 32);
        pad.put(0x38, 0x1f | segments << 16);
        Ok(pad)
    }

    fn put(&self, parameter: u64, value: u64) {
        // SAFETY: in the page that `open` was given.
        unsafe {
            memory::write(
                PhysAddr(self.page.0 + PARAMETERS + parameter),
                &value.to_le_bytes(),
            )
        }
    }

    /// Starts a core and waits until `is_there`, which the core makes true.
    ///
    /// # Errors
    /// [`Absent`]; the core has then been reset.
    pub fn launch(&self, core: &Launch, is_there: impl Fn() -> bool) -> Result<(), Absent> {
        self.put(0x10, core.stack_end);
        self.put(0x18, core.entry as usize as u64);
        self.put(0x20, core.argument);
        apic::init(core.apic_id);
        self.wait(INIT_WAIT_US, || false);
        for _ in 0..2 {
            apic::startup(core.apic_id, self.page);
            if self.wait(START_PATIENCE_US, &is_there) {
                return Ok(());
            }
        }
        apic::init(core.apic_id);
        Err(Absent)
    }

    /// Waits for a condition; whether it came.
    fn wait(&self, time_us: u64, done: impl Fn() -> bool) -> bool {
        let end = cpu::time_stamp() + time_us * u64::from(self.tsc_khz) / 1000;
        while cpu::time_stamp() < end {
            if done() {
                return true;
            }
            cpu::relax();
        }
        done()
    }

    /// Takes the page out of the kernel's table; it is free again.
    pub fn close(self, kernel: &mut PageTable) {
        kernel.unmap(self.page.0);
        cpu::forget_page(self.page.0);
    }
}

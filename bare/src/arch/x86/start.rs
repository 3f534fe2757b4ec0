//! Starting the kernel's other cores.
//!
//! A start-up IPI starts a core in a page below 1 MiB; every node has some of its own. The code
//! there (`boot.S`) also needs a page table below 4 GiB that identity-maps the page.

use super::apic;
use super::cpu;
use super::paging::{Flags, MapError, Page, PageSize, PageTable};
use crate::memory::{self, FRAME_SIZE, FrameAllocator, PhysAddr};

/// Pages of low memory needed: code, and a page table of three levels.
pub const LOW_PAGES: u64 = 4;
/// Offset of the parameters in the page: START_* of boot.S.
const PARAMETERS: u64 = 0xf00;
/// Wait after INIT, as Intel advises for old processors.
const INIT_WAIT_US: u64 = 10_000;
/// Time for a core to come up after each of two start-up IPIs.
const START_TIMEOUT_US: u64 = 2_000_000;

/// The core did not come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartTimeout;

/// Pages of low memory through which other cores are started.
#[derive(Debug)]
pub struct Trampoline {
    page: PhysAddr,
    tsc_khz: u32,
}

/// A core to start.
#[derive(Clone, Copy, Debug)]
pub struct SecondaryCore {
    /// The id of its local APIC.
    pub apic_id: u32,
    /// End of its stack, a kernel virtual address.
    pub stack_end: u64,
    /// Function that the core calls with `argument`. It never returns.
    pub entry: extern "C" fn(u64) -> !,
    /// Argument of `entry`.
    pub argument: u64,
}

/// Returns the trampoline code, and the offsets of its 32-bit and 64-bit parts.
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

impl Trampoline {
    /// Writes code and page table to the pages from `low` on. They stay identity-mapped in the
    /// kernel's table until [`Trampoline::remove`].
    ///
    /// # Safety
    /// `LOW_PAGES` pages from `low` on, below 640 KiB, belong to this kernel and are free.
    ///
    /// # Errors
    /// [`MapError`].
    pub unsafe fn install(
        low: PhysAddr,
        kernel: &mut PageTable,
        frames: &mut dyn FrameAllocator,
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
        let entry_for = |address: u64, flags: u64| address | flags | 0x3;
        const LARGE: u64 = 0x80;
        // SAFETY: all writes are within the pages that the caller gave.
        unsafe {
            memory::clear(low, LOW_PAGES * FRAME_SIZE);
            memory::write(low, code);
            for (at, value) in [
                (table(1), entry_for(table(2), 0)),
                (table(2), entry_for(table(3), 0)),
                (table(3), entry_for(0, LARGE)),
            ] {
                memory::write(PhysAddr(at), &value.to_le_bytes());
            }
        }
        let trampoline = Self { page: low, tsc_khz };
        // Flat segments: 32-bit code, 64-bit code, data.
        const SEGMENTS: [u64; 4] = [
            0,
            0x00cf_9b00_0000_ffff,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
        ];
        let segments = low.0 + PARAMETERS + 0x80;
        for (number, segment) in (0..).zip(SEGMENTS) {
            trampoline.put(0x80 + 8 * number, segment);
        }
        trampoline.put(0x00, table(1));
        trampoline.put(0x08, kernel.root().0);
        trampoline.put(0x28, (low.0 + code32) | 0x08 << 32);
        trampoline.put(0x30, (low.0 + code64) | 0x10 << 32);
        trampoline.put(0x38, 0x1f | segments << 16);
        Ok(trampoline)
    }

    fn put(&self, parameter: u64, value: u64) {
        // SAFETY: within the page that `install` was given.
        unsafe {
            memory::write(
                PhysAddr(self.page.0 + PARAMETERS + parameter),
                &value.to_le_bytes(),
            )
        }
    }

    /// Starts a core and waits for `is_up`, which the core makes true.
    ///
    /// # Errors
    /// [`StartTimeout`]; the core has then been reset.
    pub fn start(
        &self,
        core: &SecondaryCore,
        is_up: impl Fn() -> bool,
    ) -> Result<(), StartTimeout> {
        self.put(0x10, core.stack_end);
        self.put(0x18, core.entry as usize as u64);
        self.put(0x20, core.argument);
        apic::send_init(core.apic_id);
        self.wait(INIT_WAIT_US, || false);
        for _ in 0..2 {
            apic::send_startup(core.apic_id, self.page);
            if self.wait(START_TIMEOUT_US, &is_up) {
                return Ok(());
            }
        }
        apic::send_init(core.apic_id);
        Err(StartTimeout)
    }

    /// Waits for a condition. Returns whether it became true.
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

    /// Unmaps the page from the kernel's table; it is free again.
    pub fn remove(self, kernel: &mut PageTable) {
        kernel.unmap(self.page.0);
        cpu::flush_tlb_page(self.page.0);
    }
}

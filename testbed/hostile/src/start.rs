//! Entry, page table, and the second core.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_bare::memory::{FRAME_SIZE, FrameAllocator, HUGE_SIZE, LARGE_SIZE};
use insula_bare::paging::{Flags, Page, PageSize, PageTable};
use insula_bare::start::{LOW_PAGES, SecondaryCore, Trampoline};
use insula_bare::{PhysAddr, apic, cpu, memory};

use crate::attack::{self, Core};
use crate::orders::{CORES, ORDERS, word};
use crate::trap::{self, Tables};

/// Link address of the image's first byte.
const IMAGE: u64 = 0xffff_ffff_8100_0000;
/// Part of the machine's memory that is mapped, the node's or not.
const MAPPED: u64 = 512 << 30;
/// Frames for page tables.
const FRAMES: usize = 16;
/// Bytes of memory in which acts do what they want.
pub const ARENA: u64 = 1 << 20;
/// Time stamp counter, assumed: it only paces the start of the second core.
const TSC_KHZ: u32 = 1_000_000;

/// By this a loader takes the image for a kernel, and finds its release.
#[used]
static BANNER: [u8; 28] = *b"Linux version 0.0.0-hostile\0";

/// What only its core uses, or the first core before the second one runs.
struct Own<T>(UnsafeCell<T>);

// SAFETY: as said above.
unsafe impl<T> Sync for Own<T> {}

impl<T> Own<T> {
    const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
}

#[repr(align(4096))]
struct Bytes<const N: usize>([u8; N]);

static TABLES: [Own<Tables>; CORES] = [const { Own::new(Tables::new()) }; CORES];
static FRAME_POOL: Own<Bytes<{ FRAMES * FRAME_SIZE as usize }>> = Own::new(Bytes([0; _]));
static ARENAS: [Own<Bytes<{ ARENA as usize }>>; CORES] =
    [const { Own::new(Bytes([0; ARENA as usize])) }; CORES];
static SECOND_STACK: Own<Bytes<65536>> = Own::new(Bytes([0; _]));
/// Physical address of the image.
static LOADED_AT: AtomicU64 = AtomicU64::new(0);
/// Physical address of the page table's root.
static ROOT: AtomicU64 = AtomicU64::new(0);
/// Cores that run.
static RUNNING: AtomicU64 = AtomicU64::new(1);

/// Physical address of the root of the kernel's page table.
#[must_use]
pub fn root() -> u64 {
    ROOT.load(Ordering::Relaxed)
}

/// The physical address of something in the image.
fn physical<T>(of: *const T) -> u64 {
    of as u64 - IMAGE + LOADED_AT.load(Ordering::Relaxed)
}

/// Gives frames of the pool, which is zero.
struct Frames(u64);

impl FrameAllocator for Frames {
    fn alloc(&mut self) -> Option<PhysAddr> {
        let number = self.0;
        self.0 += 1;
        let start = physical(FRAME_POOL.0.get());
        (number < FRAMES as u64).then_some(PhysAddr(start + number * FRAME_SIZE))
    }

    fn free(&mut self, _: PhysAddr) {}
}

/// The first core, entered by `boot.S`.
pub fn first_core(boot_params: u64, image: u64) -> ! {
    LOADED_AT.store(image, Ordering::Relaxed);
    let mut frames = Frames(0);
    let Some(mut table) = page_table(image, &mut frames) else {
        trap::triple_fault();
    };
    ROOT.store(table.root().0, Ordering::Relaxed);
    let low = low_memory(boot_params);
    // SAFETY: it maps the kernel as the loader's table does.
    unsafe { cpu::set_root(table.root().0) };
    if apic::choose_mode(0, &mut table, &mut frames).is_err() {
        trap::triple_fault();
    }
    prepare(0);
    ORDERS.wait();
    if word(&ORDERS.own_count) > 1 {
        start_second(low, &mut table, &mut frames);
    }
    run(0)
}

/// The second core.
extern "C" fn second_core(_: u64) -> ! {
    prepare(1);
    RUNNING.fetch_add(1, Ordering::AcqRel);
    run(1)
}

/// Takes exceptions and interrupts of the calling core from now on.
fn prepare(index: usize) {
    apic::enable();
    // SAFETY: the tables are this core's.
    unsafe { (*TABLES[index].0.get()).install() };
}

fn run(index: usize) -> ! {
    let (tables, arena) = (TABLES[index].0.get(), ARENAS[index].0.get());
    attack::run(Core::new(index, tables, physical(arena)))
}

/// A failure of its own is no attack: the core halts, and the test sees that it did nothing.
pub fn panicked() -> ! {
    cpu::halt_forever()
}

/// A table with the image, and all memory of the machine in the direct map, the node's or not.
fn page_table(image: u64, frames: &mut Frames) -> Option<PageTable> {
    let mut table = PageTable::new_kernel(frames).ok()?;
    let pages = (0..8).map(|number| Page {
        start: IMAGE + number * LARGE_SIZE,
        frame: PhysAddr(image + number * LARGE_SIZE),
        size: PageSize::Large,
        flags: Flags::WRITABLE,
    });
    let all = (0..MAPPED / HUGE_SIZE).map(|number| Page {
        start: memory::DIRECT_MAP + number * HUGE_SIZE,
        frame: PhysAddr(number * HUGE_SIZE),
        size: PageSize::Huge,
        flags: Flags::WRITABLE,
    });
    for page in pages.chain(all) {
        table.map(page, frames).ok()?;
    }
    Some(table)
}

/// Memory of the node below 640 KiB for the second core's start: the end of the first range that is
/// large enough (`e820_table` of struct boot_params).
fn low_memory(boot_params: u64) -> Option<PhysAddr> {
    const COUNT: u64 = 0x1e8;
    const TABLE: u64 = 0x2d0;
    const ENTRY: u64 = 20;
    const RAM: u32 = 1;
    let read = |at: u64, bytes: &mut [u8]| {
        // SAFETY: boot_params is memory of this kernel.
        unsafe { memory::read(PhysAddr(boot_params + at), bytes) }
    };
    let mut count = [0];
    read(COUNT, &mut count);
    (0..u64::from(count[0])).find_map(|number| {
        let mut entry = [0; ENTRY as usize];
        read(TABLE + number * ENTRY, &mut entry);
        let long = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
        let kind = u32::from_le_bytes(entry[16..].try_into().unwrap_or_default());
        let (start, size) = (long(0), long(8));
        let needed = LOW_PAGES * FRAME_SIZE;
        let fits = kind == RAM && size >= needed && start + size <= 640 << 10;
        fits.then_some(PhysAddr((start + size - needed) & !(FRAME_SIZE - 1)))
    })
}

/// Starts the second core as a kernel should. Returns whether it runs.
fn start_second(low: Option<PhysAddr>, table: &mut PageTable, frames: &mut Frames) -> bool {
    let Some(low) = low else {
        return false;
    };
    let id = word(&ORDERS.own_cores[1]) as u32;
    // SAFETY: the pages are this kernel's, by its memory map, and free.
    let Ok(trampoline) = (unsafe { Trampoline::install(low, table, frames, TSC_KHZ) }) else {
        return false;
    };
    let core = SecondaryCore {
        apic_id: id,
        stack_end: SECOND_STACK.0.get() as u64 + 65536,
        entry: second_core,
        argument: 0,
    };
    let is_up = || RUNNING.load(Ordering::Acquire) > 1;
    trampoline.start(&core, is_up).is_ok()
}

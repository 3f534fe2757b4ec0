//! The kernel's own page table: the direct map, with the largest possible pages, and the image with
//! the least permissions that each section needs.

#![allow(unsafe_code, reason = "linker symbols give the image's sections")]

use insula_bare::cpu::cpuid;
use insula_bare::memory::DIRECT_MAP;
use insula_bare::paging::{Flags, MapError, Page, PageSize, PageTable};
use insula_bare::{FRAME_SIZE, PhysAddr};

use crate::hw::boot_info::BootInfo;
use crate::hw::boot_info::memory_map::MemoryRange;
use crate::hw::memory::room::NoMemory;
use crate::hw::memory::table_frames::KernelFrames;

/// Physical memory of the machine of which pages can be mapped later: root entries that are added
/// later are not in the tables of programs. A frame for every 512 GiB.
pub(crate) const BASE_MEMORY_MAX: u64 = 16 << 40;
/// Memory that a root entry covers.
const ROOT_ENTRY_SIZE: u64 = 512 << 30;

/// The kernel's own page table.
static KERNEL: spin::Mutex<Option<PageTable>> = spin::Mutex::new(None);

/// Stores the kernel's page table.
pub(crate) fn set(table: PageTable) {
    *KERNEL.lock() = Some(table);
}

/// Calls a function with the kernel's page table, whose upper half all tables share.
///
/// # Panics
/// Before all cores have been started.
pub(crate) fn with_kernel_table<T>(operation: impl FnOnce(&PageTable) -> T) -> T {
    operation(KERNEL.lock().as_ref().expect("the kernel has a page table"))
}

/// Returns the root of the kernel's page table.
pub(crate) fn kernel_root() -> PhysAddr {
    with_kernel_table(PageTable::root)
}

/// Maps a page of the base in the direct map, if that has not been done; it stays mapped.
///
/// # Errors
/// [`NoMemory`], also beyond the memory for which the table is prepared.
pub(crate) fn map_base_page(frame: PhysAddr) -> Result<(), NoMemory> {
    map_page(frame, Flags::WRITABLE | Flags::NO_EXECUTE)
}

/// Maps the page of registers with an address in the direct map, uncached, if that has not been done; it
/// stays mapped.
///
/// # Errors
/// As of [`map_base_page`].
pub(crate) fn map_register_page(at: PhysAddr) -> Result<(), NoMemory> {
    let frame = PhysAddr(at.0 & !(FRAME_SIZE - 1));
    map_page(frame, Flags::WRITABLE | Flags::UNCACHED | Flags::NO_EXECUTE)
}

fn map_page(frame: PhysAddr, flags: Flags) -> Result<(), NoMemory> {
    if frame.0 >= BASE_MEMORY_MAX {
        return Err(NoMemory);
    }
    let page = Page {
        start: DIRECT_MAP + frame.0,
        frame,
        size: PageSize::Small,
        flags,
    };
    let mut kernel = KERNEL.lock();
    let table = kernel.as_mut().expect("the kernel has a page table");
    match table.map(page, &mut KernelFrames) {
        Ok(()) | Err(MapError::Occupied) => Ok(()),
        Err(MapError::NoMemory) => Err(NoMemory),
    }
}

/// Returns where the image's sections begin: text, constants, data, and the end.
#[cfg(target_os = "none")]
fn parts() -> [u64; 4] {
    unsafe extern "C" {
        static _text: u8;
        static _etext: u8;
        static _data: u8;
        static _end: u8;
    }
    let symbols = [
        &raw const _text,
        &raw const _etext,
        &raw const _data,
        &raw const _end,
    ];
    symbols.map(|symbol| symbol as u64)
}

#[cfg(not(target_os = "none"))]
fn parts() -> [u64; 4] {
    [0; 4]
}

/// Returns the size of the image in memory, in bytes.
pub(crate) fn image_size() -> u64 {
    let [text, .., end] = parts();
    end - text
}

/// Builds the table for an image at `image`.
///
/// # Errors
/// [`MapError`].
pub(crate) fn build(boot_info: &BootInfo, image: PhysAddr) -> Result<PageTable, MapError> {
    let mut table = PageTable::new_kernel(&mut KernelFrames)?;
    for range in boot_info.memory.iter().chain(&boot_info.reserved) {
        map_direct(&mut table, range)?;
    }
    for bus in &boot_info.buses {
        map_registers(&mut table, &bus.config)?;
    }
    for at in (0..BASE_MEMORY_MAX).step_by(ROOT_ENTRY_SIZE as usize) {
        table.prepare_root(DIRECT_MAP + at, &mut KernelFrames)?;
    }
    map_image(&mut table, image)?;
    Ok(table)
}

/// Maps a range of memory in the direct map.
fn map_direct(table: &mut PageTable, range: &MemoryRange) -> Result<(), MapError> {
    let has_huge = cpuid(0x8000_0001, 0).edx & 1 << 26 != 0;
    let sizes = [PageSize::Huge, PageSize::Large, PageSize::Small];
    let mut at = range.start.next_multiple_of(FRAME_SIZE);
    while at + FRAME_SIZE <= range.end() {
        let fits = |size: &&PageSize| {
            at.is_multiple_of(size.bytes())
                && at + size.bytes() <= range.end()
                && (has_huge || **size != PageSize::Huge)
        };
        let size = sizes.iter().find(fits).copied().unwrap_or(PageSize::Small);
        let page = Page {
            start: DIRECT_MAP + at,
            frame: PhysAddr(at),
            size,
            flags: Flags::WRITABLE | Flags::NO_EXECUTE,
        };
        table.map(page, &mut KernelFrames)?;
        at += size.bytes();
    }
    Ok(())
}

/// Maps registers in the direct map, uncached, unless they are beyond it.
fn map_registers(table: &mut PageTable, range: &MemoryRange) -> Result<(), MapError> {
    if range.start >= BASE_MEMORY_MAX {
        return Ok(());
    }
    for at in (range.start..range.end()).step_by(FRAME_SIZE as usize) {
        let page = Page {
            start: DIRECT_MAP + at,
            frame: PhysAddr(at),
            size: PageSize::Small,
            flags: Flags::WRITABLE | Flags::UNCACHED | Flags::NO_EXECUTE,
        };
        table.map(page, &mut KernelFrames)?;
    }
    Ok(())
}

fn map_image(table: &mut PageTable, image: PhysAddr) -> Result<(), MapError> {
    let [text, text_end, data, end] = parts();
    for start in (text..end).step_by(FRAME_SIZE as usize) {
        let flags = match start {
            at if at < text_end => Flags::empty(),
            at if at < data => Flags::NO_EXECUTE,
            _ => Flags::WRITABLE | Flags::NO_EXECUTE,
        };
        let page = Page {
            start,
            frame: PhysAddr(image.0 + (start - text)),
            size: PageSize::Small,
            flags,
        };
        table.map(page, &mut KernelFrames)?;
    }
    Ok(())
}

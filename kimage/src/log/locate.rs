//! Finding a kernel in memory.

use super::error::LogError;
use super::kernel::Kernel;
use super::layout::LogLayout;
use super::placement::Placement;
use super::reader::LogReader;
use crate::memory::PhysicalMemory;

/// Alignment of a kernel's physical address: `MIN_KERNEL_ALIGN` of arch/x86/include/asm/boot.h.
const PLACE_ALIGNMENT: u64 = 2 << 20;
/// Records read to see whether a candidate has logged anything.
const RECORDS_TRIED: u64 = 256;
/// `panic_cpu` of a kernel that has not panicked: `PANIC_CPU_INVALID` of include/linux/panic.h.
const PANIC_CPU_INVALID: [u8; 4] = (-1_i32).to_le_bytes();

/// Looks for the kernel of `layout` in `memory`; `None` when it is not there, or has not logged
/// anything yet.
///
/// The decompressor places a kernel at a random physical address, a multiple of 2 MiB, and adds a
/// random offset to its virtual addresses (arch/x86/boot/compressed/kaslr.c). The physical address
/// is found by the banner, the virtual offset by the pointer `prb`. A copy that is still being
/// decompressed also has the banner; hence a record is required.
///
/// Takes one short read per 2 MiB of memory.
pub fn locate<M: PhysicalMemory + ?Sized>(layout: &LogLayout, memory: &M) -> Option<Placement> {
    let places = |range: std::ops::Range<u64>| {
        let first = range
            .start
            .checked_next_multiple_of(PLACE_ALIGNMENT)
            .unwrap_or(range.end);
        (first..range.end).step_by(PLACE_ALIGNMENT as usize)
    };
    memory
        .ranges()
        .into_iter()
        .flat_map(places)
        .find_map(|physical| runs_at(layout, memory, physical))
}

/// Whether a panicking kernel has stored the number of its core. True from the first moment of a
/// panic. False if the kernel is not there any more: its memory may just have been cleared.
///
/// # Errors
/// [`LogError::Read`] when the memory cannot be read.
pub fn panicked<M: PhysicalMemory + ?Sized>(
    layout: &LogLayout,
    placement: Placement,
    memory: &M,
) -> Result<bool, LogError> {
    let mut panic_cpu = [0; 4];
    let kernel = Kernel::at(layout, memory, placement.physical);
    memory.read(kernel.of_link(layout.panic_cpu), &mut panic_cpu)?;
    Ok(panic_cpu != PANIC_CPU_INVALID && has_banner(&kernel))
}

fn has_banner<M: PhysicalMemory + ?Sized>(kernel: &Kernel<'_, M>) -> bool {
    let mut banner = vec![0; kernel.layout.banner.len()];
    let address = kernel.of_link(kernel.layout.banner_address);
    kernel.memory.read(address, &mut banner).is_ok() && banner == kernel.layout.banner.as_bytes()
}

/// The placement of the kernel at `physical`, if one runs there.
fn runs_at<M: PhysicalMemory + ?Sized>(
    layout: &LogLayout,
    memory: &M,
    physical: u64,
) -> Option<Placement> {
    let kernel = Kernel::at(layout, memory, physical);
    if !has_banner(&kernel) {
        return None;
    }
    let (_, virtual_offset) = kernel.prb().ok()?;
    let placement = Placement {
        physical,
        virtual_offset,
    };
    let mut log = LogReader::new(layout, placement, memory);
    log.next_within(RECORDS_TRIED).ok()??;
    Some(placement)
}

//! The tboot page as Linux checks it, and its instructions.
#![allow(unsafe_code, reason = "the assembled bytes lie between two labels")]

mod support;

use std::arch::global_asm;

use insula_boot::{Chunk, E820Type, Layout, lay_out};
use support::{LOW, MIB, PAGE, kernel, node, read, read_u32, read_u64};

/// Fields of `struct tboot` (include/linux/tboot.h).
const SHUTDOWN_ENTRY: u64 = 24;
const SHUTDOWN_TYPE: usize = 28;
const NUM_IN_WFS: usize = 564;
/// Offsets of the page's own parts.
const POWER_OFF: usize = 0x400;
const RESET: usize = 0x440;
const ENTRY: usize = 0x480;

global_asm!(
    ".pushsection .rodata",
    ".balign 4096",
    "insula_tboot_page:",
    ".zero {entry}",
    "insula_tboot_entry:",
    "endbr64",
    "cli",
    "mov eax, dword ptr [rip + insula_tboot_page + {shutdown_type}]",
    "test eax, eax", // TB_SHUTDOWN_REBOOT
    "jne 2f",
    "mov byte ptr [rip + insula_tboot_page + {reset}], 1",
    "jmp 4f",
    "2: cmp eax, 1", // TB_SHUTDOWN_S5
    "jne 3f",
    "mov byte ptr [rip + insula_tboot_page + {power_off}], 1",
    "jmp 4f",
    "3: cmp eax, 5", // TB_SHUTDOWN_WFS
    "jne 4f",
    "lock inc dword ptr [rip + insula_tboot_page + {num_in_wfs}]",
    "4: hlt",
    "jmp 4b",
    "insula_tboot_end:",
    ".popsection",
    entry = const ENTRY,
    shutdown_type = const SHUTDOWN_TYPE,
    reset = const RESET,
    power_off = const POWER_OFF,
    num_in_wfs = const NUM_IN_WFS,
);

unsafe extern "C" {
    static insula_tboot_entry: u8;
    static insula_tboot_end: u8;
}

fn laid_out() -> Layout {
    let kernel = kernel(52 * MIB);
    let chunks = [
        LOW,
        Chunk {
            start: 64 * MIB,
            size: 128 * MIB,
        },
    ];
    lay_out(&node(&kernel, &chunks)).expect("fits")
}

/// Its address in `boot_params`.
fn page(layout: &Layout) -> u64 {
    read_u64(layout, layout.argument + 0x058)
}

/// `tboot_probe()` in arch/x86/kernel/tboot.c requires a reserved page that is not at the start of
/// a map entry; then UUID and version.
#[test]
fn linux_accepts_it() {
    let layout = laid_out();
    let page = page(&layout);
    assert!(page.is_multiple_of(PAGE) && page < 1 << 32);
    let holds = layout.e820.iter().any(|entry| {
        entry.kind == E820Type::Reserved
            && entry.start < page
            && page + PAGE <= entry.start + entry.size
    });
    assert!(holds, "{page:x} in {:x?}", layout.e820);
    let uuid = "ff8d3c66b3e8824bbfaa19ea4d057a08";
    let found = read(&layout, page, 16);
    let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, uuid);
    assert_eq!(read_u32(&layout, page + 16), 5, "version");
    assert_eq!(u64::from(read_u32(&layout, page + 104)), page, "tboot_base");
    assert_eq!(u64::from(read_u32(&layout, page + 108)), PAGE, "tboot_size");
    let waiting = read_u32(&layout, page + NUM_IN_WFS as u64);
    assert_eq!(waiting, 1, "the core that goes offline counts itself");
}

#[test]
fn power_off_and_reset_bytes_are_in_the_page() {
    let layout = laid_out();
    let page = page(&layout);
    assert_eq!(layout.power_off, page + POWER_OFF as u64);
    assert_eq!(layout.reset, page + RESET as u64);
}

#[test]
fn instructions_equal_the_assembled_source() {
    let (entry, end) = (&raw const insula_tboot_entry, &raw const insula_tboot_end);
    let size = end.addr() - entry.addr();
    // SAFETY: the bytes between two labels of one read-only section.
    let assembled = unsafe { std::slice::from_raw_parts(entry, size) };
    let layout = laid_out();
    let page = page(&layout);
    let entry = read_u32(&layout, page + SHUTDOWN_ENTRY);
    assert_eq!(u64::from(entry), page + ENTRY as u64);
    assert_eq!(read(&layout, entry.into(), size), assembled);
}

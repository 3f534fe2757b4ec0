//! The tboot page, by which the node's kernel powers off and resets: the interface of Intel's
//! Trusted Boot.
//!
//! Linux' methods to reset a machine affect the whole machine. The only one that can be redirected,
//! the ACPI reset register, is followed by the keyboard controller after 15 ms. But before all of
//! them, and before it halts, a kernel launched by Trusted Boot calls that (`tboot_shutdown()` in
//! arch/x86/kernel/tboot.c, for CONFIG_INTEL_TXT) and does not expect it to return. So the node
//! appears to be launched by it: `boot_params` point to this page, and the page to a few
//! instructions, which write one of the bytes that the base polls and halt the core. This works
//! from the end of the kernel's initialization on, regardless of `reboot=`. Other effects of the
//! page on Linux are in docs/src/node-view.md.
//!
//! The page lies below 4 GiB, since pointers to it have 32 bits, and behind the fake I/O APIC:
//! Linux rejects a page at the start of a memory map entry (`e820__mapped_any()` of an empty
//! range). Linux maps it one to one when it calls the instructions, which access nothing else; so
//! the power-off and reset bytes are in it as well.

use crate::chunk::{Chunk, Memory, PAGE};

/// Offsets in the packed `struct tboot` of include/linux/tboot.h. Other fields stay zero.
const VERSION: usize = 16;
const SHUTDOWN_ENTRY: usize = 24;
const TBOOT_BASE: usize = 104;
const TBOOT_SIZE: usize = 108;
const NUM_IN_WFS: usize = 564;

/// UUID of the page, "{663C8DFF-E8B3-4b82-AABF-19EA4D057A08}".
const UUID: [u8; 16] = [
    0xff, 0x8d, 0x3c, 0x66, 0xb3, 0xe8, 0x82, 0x4b, 0xbf, 0xaa, 0x19, 0xea, 0x4d, 0x05, 0x7a, 0x08,
];
/// The first version that Linux uses for shutdown.
const VERSION_5: u32 = 5;

/// Initial number of cores waiting offline. One too many, since Linux expects the core that goes
/// offline to be counted already when it is the last but one (`tboot_dying_cpu()`), and otherwise
/// waits for a quarter of a second.
const WAITING: u32 = 1;

/// Offset of the power-off byte.
const POWER_OFF: usize = 0x400;
/// Offset of the reset byte, in another cache line so that polls do not interfere.
const RESET: usize = 0x440;
/// Offset of the instructions.
const ENTRY: usize = 0x480;

/// Instructions that any core calls in 64-bit mode with the reason in `shutdown_type`:
/// `TB_SHUTDOWN_REBOOT` 0, `S5` 1, `HALT` 4, `WFS` 5 (a core that goes offline, to wait for its
/// next start). tests/tboot.rs compares them with their source.
const INSTRUCTIONS: [u8; 53] = [
    0xf3, 0x0f, 0x1e, 0xfa, // endbr64
    0xfa, // cli
    0x8b, 0x05, 0x91, 0xfb, 0xff, 0xff, // mov eax, [shutdown_type]
    0x85, 0xc0, // test eax, eax
    0x75, 0x09, // jne 1f
    0xc6, 0x05, 0xaa, 0xff, 0xff, 0xff, 0x01, // mov byte ptr [reset], 1
    0xeb, 0x1a, // jmp 3f
    0x83, 0xf8, 0x01, // 1: cmp eax, TB_SHUTDOWN_S5
    0x75, 0x09, // jne 2f
    0xc6, 0x05, 0x5c, 0xff, 0xff, 0xff, 0x01, // mov byte ptr [power_off], 1
    0xeb, 0x0c, // jmp 3f
    0x83, 0xf8, 0x05, // 2: cmp eax, TB_SHUTDOWN_WFS
    0x75, 0x07, // jne 3f
    0xf0, 0xff, 0x05, 0x82, 0xfd, 0xff, 0xff, // lock inc dword ptr [num_in_wfs]
    0xf4, // 3: hlt
    0xeb, 0xfd, // jmp 3b
];

/// The page: at the end of the low chunk.
pub(crate) fn page_of(memory: &Memory) -> Chunk {
    Chunk::between(memory.low.end() - PAGE, memory.low.end())
}

/// Address of the power-off byte of the page at `page`.
pub(crate) fn power_off(page: u64) -> u64 {
    page + POWER_OFF as u64
}

/// Address of the reset byte.
pub(crate) fn reset(page: u64) -> u64 {
    page + RESET as u64
}

/// Initial contents of the page at `page`.
pub(crate) fn to_bytes(page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE as usize];
    let mut put = |offset: usize, part: &[u8]| {
        bytes[offset..offset + part.len()].copy_from_slice(part);
    };
    // The low chunk ends below 1 MiB.
    let address = page as u32;
    put(0, &UUID);
    put(VERSION, &VERSION_5.to_le_bytes());
    put(SHUTDOWN_ENTRY, &(address + ENTRY as u32).to_le_bytes());
    put(TBOOT_BASE, &address.to_le_bytes());
    put(TBOOT_SIZE, &(PAGE as u32).to_le_bytes());
    put(NUM_IN_WFS, &WAITING.to_le_bytes());
    put(ENTRY, &INSTRUCTIONS);
    bytes
}

//! The page through which the node's kernel ends: what Intel's Trusted Boot leaves to a kernel that it has launched.
//!
//! Linux' own ways to reset a machine reset the whole machine. The one that could be made a node's own, the ACPI
//! reset register, is followed by the keyboard controller after 15 ms, in which the base must have noticed. But
//! before all of them, and before it halts, a kernel launched by Trusted Boot calls that (`tboot_shutdown()` in
//! arch/x86/kernel/tboot.c, for CONFIG_INTEL_TXT) and does not expect to come back. So the node is told that it was:
//! `boot_params` lead to this page, the page to a few instructions, and these write one of the bytes that the base
//! watches, and halt the core for good. It works from the end of the kernel's initialization on, whatever way to
//! reboot is set. What else Linux does when it finds the page is in docs/src/node-view.md.
//!
//! The page lies below 4 GiB, as what leads to it has 32 bits, behind the fake I/O APIC: Linux does not believe in a
//! page at which a stretch of the memory map begins (`e820__mapped_any()` of an empty range). It is mapped one to one
//! when the instructions are called, and they reach nothing else; so the bytes that end the node are here as well.

use crate::chunk::{Chunk, Memory, PAGE};

/// `struct tboot` of include/linux/tboot.h, which is packed. What is not written stays zero.
const VERSION: usize = 16;
const SHUTDOWN_ENTRY: usize = 24;
const TBOOT_BASE: usize = 104;
const TBOOT_SIZE: usize = 108;
const NUM_IN_WFS: usize = 564;

/// What Linux knows the page by, "{663C8DFF-E8B3-4b82-AABF-19EA4D057A08}".
const UUID: [u8; 16] = [
    0xff, 0x8d, 0x3c, 0x66, 0xb3, 0xe8, 0x82, 0x4b, 0xbf, 0xaa, 0x19, 0xea, 0x4d, 0x05, 0x7a, 0x08,
];
/// The first that Linux takes for one that it can be ended by.
const VERSION_5: u32 = 5;

/// How many cores wait offline at first. One too many, for Linux, when the last core but one goes offline, expects it
/// to wait already (`tboot_dying_cpu()`), and else stands still for a quarter of a second.
const WAITING: u32 = 1;

/// Where the byte is that powers the node off.
const POWER_OFF: usize = 0x400;
/// Where the byte is that resets it: a cache line apart, so that polling one does not disturb the other.
const RESET: usize = 0x440;
/// Where the instructions begin.
const ENTRY: usize = 0x480;

/// Called in 64-bit mode with the reason in `shutdown_type`, by any core: `TB_SHUTDOWN_REBOOT` 0, `S5` 1, `HALT` 4,
/// `WFS` 5 (a core that goes offline, to wait for its next start). tests/tboot.rs holds them against their source.
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

/// Where the page lies: at the end of the low chunk.
pub(crate) fn page_of(memory: &Memory) -> Chunk {
    Chunk::between(memory.low.end() - PAGE, memory.low.end())
}

/// The byte that powers the node off, for the page at `page`.
pub(crate) fn power_off(page: u64) -> u64 {
    page + POWER_OFF as u64
}

/// The byte that resets it.
pub(crate) fn reset(page: u64) -> u64 {
    page + RESET as u64
}

/// What the page at `page` holds at start.
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

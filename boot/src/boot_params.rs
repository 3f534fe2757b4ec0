//! `struct boot_params`, the "zero page": what a loader tells a Linux kernel.
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst ("64-bit Boot Protocol") and zero-page.rst, and
//! arch/x86/include/uapi/asm/bootparam.h for the offsets. All fields that are not written stay zero: no video mode
//! (so that neither decompressor nor kernel touches the base's screen), no EFI, no disks of the BIOS, and the
//! sentinel that tells a carelessly copied header from a clean page.

use crate::e820::E820Entry;
use crate::setup_header::{HEADER, SetupHeader};

/// Size of the structure, in bytes.
pub(crate) const SIZE: usize = 4096;

const ACPI_RSDP_ADDR: usize = 0x070;
const EXT_RAMDISK_IMAGE: usize = 0x0c0;
const EXT_RAMDISK_SIZE: usize = 0x0c4;
const EXT_CMD_LINE_PTR: usize = 0x0c8;
const E820_ENTRIES: usize = 0x1e8;
const VID_MODE: usize = 0x1fa;
const TYPE_OF_LOADER: usize = 0x210;
const LOADFLAGS: usize = 0x211;
const RAMDISK_IMAGE: usize = 0x218;
const RAMDISK_SIZE: usize = 0x21c;
const CMD_LINE_PTR: usize = 0x228;
const SETUP_DATA: usize = 0x250;
const E820_TABLE: usize = 0x2d0;

/// Most entries in the page's own memory map; more go to setup data.
const E820_ENTRIES_MAX: usize = 128;
/// "No loader of those that have a number."
const LOADER_UNDEFINED: u8 = 0xff;
/// The protected-mode part is not at 64 KiB.
const LOADED_HIGH: u8 = 1 << 0;
/// "normal": leave the video mode.
const VIDEO_NORMAL: u16 = 0xffff;
/// `SETUP_E820_EXT`: setup data that continues the memory map.
const SETUP_E820_EXT: u32 = 1;
/// Size of the head of `struct setup_data`, in bytes: next, type, length.
const SETUP_DATA_HEAD: u64 = 16;

/// What the page tells. Addresses are physical.
#[derive(Debug)]
pub(crate) struct BootParams<'a> {
    pub(crate) header: SetupHeader<'a>,
    pub(crate) command_line: u64,
    /// Address and size in bytes; size 0 for none.
    pub(crate) initrd: (u64, u64),
    pub(crate) rsdp: u64,
    pub(crate) e820: &'a [E820Entry],
    /// Where the bytes of [`more_e820`] lie, if there are any.
    pub(crate) more_e820: u64,
}

impl BootParams<'_> {
    /// The page's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (first, rest) = self.e820.split_at(self.e820.len().min(E820_ENTRIES_MAX));
        let more_e820 = if rest.is_empty() { 0 } else { self.more_e820 };
        let (initrd, initrd_size) = self.initrd;
        let mut page = vec![0; SIZE];
        let mut put = |offset: usize, bytes: &[u8]| {
            page[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        put(HEADER, self.header.bytes());
        put(VID_MODE, &VIDEO_NORMAL.to_le_bytes());
        put(TYPE_OF_LOADER, &[LOADER_UNDEFINED]);
        put(LOADFLAGS, &[LOADED_HIGH]);
        put(RAMDISK_IMAGE, &low_half(initrd));
        put(EXT_RAMDISK_IMAGE, &high_half(initrd));
        put(RAMDISK_SIZE, &low_half(initrd_size));
        put(EXT_RAMDISK_SIZE, &high_half(initrd_size));
        put(CMD_LINE_PTR, &low_half(self.command_line));
        put(EXT_CMD_LINE_PTR, &high_half(self.command_line));
        put(SETUP_DATA, &more_e820.to_le_bytes());
        put(ACPI_RSDP_ADDR, &self.rsdp.to_le_bytes());
        // At most E820_ENTRIES_MAX, which fits.
        put(E820_ENTRIES, &[first.len() as u8]);
        put(E820_TABLE, &table(first));
        page
    }
}

/// Size in bytes of what [`more_e820`] makes of a map with `entries` entries.
pub(crate) fn more_e820_size(entries: usize) -> u64 {
    match entries.saturating_sub(E820_ENTRIES_MAX) {
        0 => 0,
        more => SETUP_DATA_HEAD + (more * E820Entry::SIZE) as u64,
    }
}

/// The setup data that holds those entries of a memory map for which the page has no room; empty if it has.
pub(crate) fn more_e820(e820: &[E820Entry]) -> Vec<u8> {
    let rest = e820.get(E820_ENTRIES_MAX..).unwrap_or_default();
    if rest.is_empty() {
        return Vec::new();
    }
    let table = table(rest);
    let mut bytes = Vec::with_capacity(SETUP_DATA_HEAD as usize + table.len());
    bytes.extend_from_slice(&0u64.to_le_bytes());
    bytes.extend_from_slice(&SETUP_E820_EXT.to_le_bytes());
    bytes.extend_from_slice(&(table.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&table);
    bytes
}

fn table(entries: &[E820Entry]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_bytes()).collect()
}

fn low_half(value: u64) -> [u8; 4] {
    (value as u32).to_le_bytes()
}

fn high_half(value: u64) -> [u8; 4] {
    ((value >> 32) as u32).to_le_bytes()
}

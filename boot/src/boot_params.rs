//! `struct boot_params`, the "zero page" of Linux' boot protocol.
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst ("64-bit Boot Protocol") and zero-page.rst,
//! and arch/x86/include/uapi/asm/bootparam.h for the offsets. Fields that are not written stay
//! zero: no video mode (so that neither decompressor nor kernel touches the base's screen), no EFI,
//! no BIOS disks, and the sentinel that marks a clean page.

use crate::e820::E820Entry;
use crate::setup_header::{HEADER, SetupHeader};

/// Size of the structure in bytes.
pub(crate) const SIZE: usize = 4096;

const TBOOT_ADDR: usize = 0x058;
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

/// Maximum entries in the page's memory map; further ones go to setup data.
pub(crate) const E820_ENTRIES_MAX: usize = 128;
/// Boot loader without an assigned number.
const LOADER_UNDEFINED: u8 = 0xff;
/// The protected-mode part is not at 64 KiB.
const LOADED_HIGH: u8 = 1 << 0;
/// "normal": keep the video mode.
const VIDEO_NORMAL: u16 = 0xffff;

/// Contents of the page. Addresses are physical.
#[derive(Debug)]
pub(crate) struct BootParams<'a> {
    pub(crate) header: SetupHeader<'a>,
    pub(crate) command_line: u64,
    /// Address and size in bytes; size 0 for none.
    pub(crate) initrd: (u64, u64),
    pub(crate) rsdp: u64,
    pub(crate) tboot: u64,
    pub(crate) e820: &'a [E820Entry],
    /// Address of the setup data, 0 if there are none.
    pub(crate) setup_data: u64,
}

impl BootParams<'_> {
    /// The page's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (first, _) = self.e820.split_at(self.e820.len().min(E820_ENTRIES_MAX));
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
        put(SETUP_DATA, &self.setup_data.to_le_bytes());
        put(TBOOT_ADDR, &self.tboot.to_le_bytes());
        put(ACPI_RSDP_ADDR, &self.rsdp.to_le_bytes());
        // At most E820_ENTRIES_MAX, which fits.
        put(E820_ENTRIES, &[first.len() as u8]);
        put(E820_TABLE, &table(first));
        page
    }
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

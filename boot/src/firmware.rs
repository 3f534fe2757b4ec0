//! The firmware region of a node's memory: everything that this crate makes, except the two pages
//! at the end of the low chunk.
//!
//! It is reserved in the memory map, so that neither KASLR nor the kernel's allocators use it. In
//! order, each page-aligned: page tables, `boot_params`, command line, setup data, ACPI tables,
//! channels.

use crate::boot_params;
use crate::chunk::PAGE;

/// Sizes in bytes of the parts of variable size.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) page_table: u64,
    /// With the terminating NUL.
    pub(crate) command_line: u64,
    pub(crate) setup_data: u64,
    pub(crate) acpi: u64,
    pub(crate) channels: u64,
}

/// Address of each part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) page_table: u64,
    pub(crate) boot_params: u64,
    pub(crate) command_line: u64,
    pub(crate) setup_data: u64,
    pub(crate) acpi: u64,
    pub(crate) channels: u64,
    /// The address after the last byte.
    end: u64,
}

impl Addresses {
    /// The addresses in a region at `base`, a multiple of 4096.
    pub(crate) fn at(base: u64, sizes: &Sizes) -> Addresses {
        let mut next = base;
        let mut part = |size: u64| {
            let start = next;
            next += size.next_multiple_of(PAGE);
            start
        };
        Addresses {
            page_table: part(sizes.page_table),
            boot_params: part(boot_params::SIZE as u64),
            command_line: part(sizes.command_line),
            setup_data: part(sizes.setup_data),
            acpi: part(sizes.acpi),
            channels: part(sizes.channels),
            end: next,
        }
    }

    /// Size of the region for parts of `sizes`, in bytes.
    pub(crate) fn size(sizes: &Sizes) -> u64 {
        Addresses::at(0, sizes).end
    }
}

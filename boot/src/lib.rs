//! Lays out a node: turns the description of a node into the bytes of its memory and the state in which its first
//! core begins. Nothing here does I/O; what comes out is copied to its place by others.
//!
//! A stock Linux kernel learns what its machine is from what its firmware and loader leave in memory. So a node is
//! made by leaving the right things in the node's own memory, and none of the base's:
//!
//! ```text
//! low chunk, below 1 MiB        real-mode memory for the kernel's use | fake I/O APIC | its end (both reserved)
//! some chunk                    kernel at its load address, then free memory
//! the same or another           initrd, then free memory
//! top of some chunk (reserved)  page tables | boot_params | command line | setup data | ACPI tables
//!                               | channels
//! ```
//!
//! | file | what |
//! |---|---|
//! | `chunk` | the memory that there is |
//! | `placement` | where kernel, initrd and firmware stretch go |
//! | `firmware` | the order of things in the firmware stretch |
//! | `e820` | the memory map |
//! | `acpi` | the tables: processors, power-off, reset, PCI buses, persistent memory |
//! | `pci` | PCI buses that are the node's own |
//! | [`persistent`] | how persistent memory begins |
//! | `io_apic` | the page that passes for an I/O APIC |
//! | `tboot` | the page by which the kernel ends |
//! | `page_table` | memory one to one, until the kernel has its own |
//! | `setup_header`, `boot_params`, `setup_data` | Linux' boot protocol |
//! | `options`, `command_line` | what else the kernel must be told, and why |

mod acpi;
mod boot_params;
mod chunk;
mod command_line;
mod e820;
mod error;
mod firmware;
mod io_apic;
pub mod options;
mod page_table;
mod pci;
pub mod persistent;
mod placement;
pub mod power_button;
mod processors;
mod setup_data;
mod setup_header;
mod tboot;

pub use chunk::Chunk;
pub use command_line::CommandLineError;
pub use e820::{E820Entry, E820Type};
pub use error::LayoutError;
pub use pci::PciBus;

use chunk::{Memory, PAGE};
use command_line::{CommandLine, Facts};
use page_table::PageTable;
use placement::{Needs, Placement};
use processors::Processors;
use setup_data::SetupData;
use setup_header::SetupHeader;

/// What a node is to be.
#[derive(Debug, Clone, Copy)]
pub struct NodeDescription<'a> {
    /// Its kernel.
    pub kernel: &'a kimage::Loadable,
    /// Size of its initrd in bytes, 0 for none.
    pub initrd_size: u64,
    /// What the user adds to the kernel's command line.
    pub command_line: &'a str,
    /// Local APIC ids of its cores; the first boots.
    pub cpus: &'a [u32],
    /// Local APIC ids of cores that it may get later.
    pub spare_cpus: &'a [u32],
    /// Its memory, in any order, all zero: exactly one chunk lies below 1 MiB, between 64 KiB and 640 KiB, and has
    /// 36 KiB or more.
    pub chunks: &'a [Chunk],
    /// Memory above 1 MiB that is not its own to use, but has a content that Linux is to have as disks: `/dev/pmem0`
    /// the first stretch by address, and so on. See [`persistent`] for how it begins.
    pub persistent: &'a [Chunk],
    /// PCI buses that are its own, each with one function.
    pub buses: &'a [PciBus<'a>],
    /// Physical address of the page from which its first core is started, below 1 MiB.
    pub trampoline: u64,
    /// Frequency of the time stamp counter in kHz.
    pub tsc_khz: u32,
    /// Bytes to reserve for the area of its channels to the base; 0 for none.
    pub channels_size: u64,
    /// What its random numbers begin with, new ones for each start; none if empty.
    pub random_seed: &'a [u8],
}

/// Bytes, and the physical address that they go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Physical address of the first byte.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A node, laid out. Addresses are physical.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Where the kernel is to be loaded.
    pub kernel: u64,
    /// Where the initrd is to be loaded; 0 when there is none.
    pub initrd: u64,
    /// What must be in memory besides: disjoint, all within the node's chunks.
    pub pieces: Vec<Piece>,
    /// Where the first core begins, in 64-bit mode.
    pub entry: u64,
    /// What it has in CR3.
    pub page_table: u64,
    /// What it has in RSI: the address of `struct boot_params`.
    pub argument: u64,
    /// The byte that the node makes non-zero to be powered off.
    pub power_off: u64,
    /// The byte that the node makes non-zero to be reset.
    pub reset: u64,
    /// The word that tells how to press the node's power button: see [`power_button::vector`].
    pub power_button: u64,
    /// Where the area of its channels lies, a multiple of 4096.
    pub channels: u64,
    /// The node's memory map, ascending.
    pub e820: Vec<E820Entry>,
    /// The kernel's whole command line.
    pub command_line: String,
    /// The user's `panic=`, of which the kernel is not told: seconds from a panic to a restart of the node, at once
    /// if negative, 0 for none.
    pub panic_s: i32,
}

/// Lays out `node`.
///
/// # Errors
/// [`LayoutError`], when the description contradicts itself, or names what does not fit and how much it needs.
pub fn lay_out(node: &NodeDescription) -> Result<Layout, LayoutError> {
    let parts = Parts::of(node)?;
    let firmware_size = firmware::Addresses::size(&parts.sizes());
    let placement = placement::place(&parts.memory.high, &needs(node, &parts, firmware_size)?)?;
    Ok(parts.assemble(node, &placement))
}

/// What is known of a node before anything has a place.
struct Parts<'a> {
    header: SetupHeader<'a>,
    memory: Memory,
    processors: Processors<'a>,
    buses: &'a [PciBus<'a>],
    command_line: CommandLine,
    page_table: PageTable,
    channels_size: u64,
    random_seed: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Checks the description and makes what does not depend on any address.
    fn of(node: &NodeDescription<'a>) -> Result<Self, LayoutError> {
        let header = SetupHeader::of(node.kernel)?;
        let memory = Memory::of(node.chunks, node.persistent)?;
        let processors = Processors::of(node.kernel.format, node.cpus, node.spare_cpus)?;
        pci::check(node.buses, &memory)?;
        if node.tsc_khz == 0 {
            return Err(LayoutError::NoTscFrequency);
        }
        if !chunk::is_low_page(node.trampoline) {
            return Err(LayoutError::BadTrampoline {
                trampoline: node.trampoline,
            });
        }
        let largest = memory.high.iter().map(|chunk| chunk.size).max();
        if largest.unwrap_or(0) < node.channels_size {
            let needed = node.channels_size;
            return Err(LayoutError::FirmwareDoesNotFit { needed });
        }
        let facts = Facts {
            tsc_khz: node.tsc_khz,
            processors,
            has_devices: !node.buses.is_empty(),
        };
        let limit = header.command_line_max();
        Ok(Parts {
            header,
            command_line: command_line::compose(&facts, node.command_line, limit)?,
            page_table: PageTable::identity(&memory, node.trampoline),
            memory,
            processors,
            channels_size: node.channels_size,
            random_seed: node.random_seed,
            buses: node.buses,
        })
    }

    fn sizes(&self) -> firmware::Sizes {
        let somewhere = firmware::Addresses::at(0, &firmware::Sizes::default());
        let entries_max = e820::entries_max(&self.memory);
        firmware::Sizes {
            page_table: self.page_table.size(),
            command_line: self.command_line.text.len() as u64 + 1,
            setup_data: SetupData::size(
                self.random_seed.len(),
                entries_max.saturating_sub(boot_params::E820_ENTRIES_MAX),
            ),
            acpi: self.acpi_tables(&somewhere).len() as u64,
            channels: self.channels_size,
        }
    }

    fn acpi_tables(&self, addresses: &firmware::Addresses) -> Vec<u8> {
        let tboot = tboot::page_of(&self.memory).start;
        let description = acpi::Description {
            processors: self.processors,
            io_apic: io_apic::page_of(&self.memory).start,
            buses: self.buses,
            persistent: &self.memory.persistent,
            power_off: tboot::power_off(tboot),
            reset: tboot::reset(tboot),
            channels: Chunk {
                start: addresses.channels,
                size: self.channels_size,
            },
        };
        acpi::tables(addresses.acpi, &description)
    }

    /// Makes everything, now that each thing has its place.
    fn assemble(self, node: &NodeDescription, placement: &Placement) -> Layout {
        let addresses = firmware::Addresses::at(placement.firmware.start, &self.sizes());
        let io_apic = io_apic::page_of(&self.memory);
        let tboot = tboot::page_of(&self.memory);
        let low = Chunk::between(io_apic.start, tboot.end());
        let e820 = e820::map(&self.memory, &[low, placement.firmware]);
        let setup_data = SetupData {
            random_seed: self.random_seed,
            e820: e820
                .get(boot_params::E820_ENTRIES_MAX..)
                .unwrap_or_default(),
        };
        let setup_data = setup_data.to_bytes(addresses.setup_data);
        let boot_params = boot_params::BootParams {
            header: self.header,
            command_line: addresses.command_line,
            initrd: (placement.initrd, node.initrd_size),
            rsdp: addresses.acpi,
            tboot: tboot.start,
            e820: &e820,
            setup_data: match setup_data.is_empty() {
                true => 0,
                false => addresses.setup_data,
            },
        };
        let mut command_line = self.command_line.text.clone().into_bytes();
        command_line.push(0);
        let pieces = [
            (io_apic.start, io_apic::to_bytes()),
            (
                addresses.page_table,
                self.page_table.to_bytes(addresses.page_table),
            ),
            (addresses.boot_params, boot_params.to_bytes()),
            (addresses.command_line, command_line),
            (addresses.setup_data, setup_data),
            (addresses.acpi, self.acpi_tables(&addresses)),
            (tboot.start, tboot::to_bytes(tboot.start)),
        ];
        let pieces = pieces.into_iter().filter(|(_, bytes)| !bytes.is_empty());
        Layout {
            kernel: placement.kernel,
            initrd: placement.initrd,
            pieces: pieces
                .map(|(address, bytes)| Piece { address, bytes })
                .collect(),
            entry: placement.kernel + node.kernel.entry_offset,
            page_table: addresses.page_table,
            argument: addresses.boot_params,
            power_off: tboot::power_off(tboot.start),
            reset: tboot::reset(tboot.start),
            power_button: io_apic.start + io_apic::DATA_WINDOW as u64,
            channels: addresses.channels,
            e820,
            command_line: self.command_line.text,
            panic_s: self.command_line.panic_s,
        }
    }
}

/// What needs a place, found to be possible.
fn needs(node: &NodeDescription, parts: &Parts, firmware: u64) -> Result<Needs, LayoutError> {
    let kernel = node.kernel;
    let damaged = |what| Err(LayoutError::BadKernel { what });
    if !kernel.alignment.is_power_of_two() {
        return damaged("its alignment is no power of two");
    }
    if kernel.entry_offset >= kernel.footprint {
        return damaged("it is entered outside of itself");
    }
    Ok(Needs {
        kernel: kernel.footprint,
        kernel_alignment: kernel.alignment.max(PAGE),
        kernel_min: parts.header.load_address_min(),
        initrd: node.initrd_size,
        firmware,
    })
}

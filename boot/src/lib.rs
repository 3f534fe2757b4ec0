//! Lays out a node: turns its description into the bytes of its memory and the initial state of its
//! first core. Nothing here does I/O; the caller writes the result.
//!
//! A stock Linux kernel learns about its machine from what firmware and loader leave in memory. So
//! a node is made by putting such data into its own memory, without any of the base's:
//!
//! ```text
//! low chunk, below 1 MiB        real-mode memory for the kernel | fake I/O APIC | tboot page (both
//! reserved)
//! some chunk                    kernel at its load address, then free memory
//! the same or another           initrd, then free memory
//! top of some chunk (reserved)  page tables | boot_params | command line | setup data | ACPI tables
//!                               | channels
//! ```
//!
//! | file | what |
//! |---|---|
//! | `chunk` | the node's memory |
//! | `placement` | placing kernel, initrd and firmware region |
//! | `firmware` | layout of the firmware region |
//! | `e820` | the memory map |
//! | `acpi` | the tables: processors, power-off, reset, PCI buses, persistent memory |
//! | `pci` | the node's PCI buses |
//! | [`persistent`] | head of persistent memory |
//! | `io_apic` | the page that stands for an I/O APIC |
//! | `tboot` | the page by which the kernel powers off and resets |
//! | `page_table` | identity mapping until the kernel has its own |
//! | [`monitor`] | memory of the monitor of a confined node |
//! | `setup_header`, `boot_params`, `setup_data` | Linux' boot protocol |
//! | `options`, `command_line` | kernel options of nodes, with reasons |

mod acpi;
mod boot_params;
mod chunk;
mod command_line;
mod e820;
mod error;
mod firmware;
pub mod generation;
mod io_apic;
pub mod monitor;
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
pub use pci::{Configuration, ConfinedFunction, PciBus};

use chunk::{Memory, PAGE};
use command_line::{CommandLine, Facts};
use page_table::PageTable;
use placement::{Needs, Placement};
use processors::Processors;
use setup_data::SetupData;
use setup_header::SetupHeader;

/// Description of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeDescription<'a> {
    /// Its kernel.
    pub kernel: &'a kimage::Loadable,
    /// Size of its initrd in bytes, 0 for none.
    pub initrd_size: u64,
    /// The user's part of the kernel's command line.
    pub command_line: &'a str,
    /// Local APIC ids of its cores, the boot core first.
    pub cpus: &'a [u32],
    /// Local APIC ids of cores that may be added.
    pub spare_cpus: &'a [u32],
    /// Its memory, zeroed, in any order: exactly one chunk lies below 1 MiB, between 64 KiB and 640
    /// KiB, and has 36 KiB or more.
    pub chunks: &'a [Chunk],
    /// Persistent memory above 1 MiB, which Linux has as disks: `/dev/pmem0` is the first range by
    /// address, and so on. See [`persistent`] for its head.
    pub persistent: &'a [Chunk],
    /// Its PCI buses, each with one function.
    pub buses: &'a [PciBus<'a>],
    /// Physical address of the page from which its first core starts, below 1 MiB.
    pub trampoline: u64,
    /// Frequency of the time stamp counter in kHz.
    pub tsc_khz: u32,
    /// Bytes to reserve for its channels to the base; 0 for none.
    pub channels_size: u64,
    /// Whether a monitor confines it: see [`monitor`].
    pub is_confined: bool,
    /// Random seed, a new one for each start; empty for none.
    pub random_seed: &'a [u8],
}

/// Bytes and their physical address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Physical address of the first byte.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Layout of a node. Addresses are physical.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Load address of the kernel.
    pub kernel: u64,
    /// Load address of the initrd; 0 if there is none.
    pub initrd: u64,
    /// All other contents: disjoint, within the node's chunks.
    pub pieces: Vec<Piece>,
    /// Entry point of the first core, in 64-bit mode.
    pub entry: u64,
    /// Its CR3.
    pub page_table: u64,
    /// Its RSI: the address of `struct boot_params`.
    pub argument: u64,
    /// The byte that the node makes non-zero to power off.
    pub power_off: u64,
    /// The byte that the node makes non-zero to reset.
    pub reset: u64,
    /// Address of the word with the power button's vector: see [`power_button::vector`].
    pub power_button: u64,
    /// Address of its generation: see [`generation`].
    pub generation: u64,
    /// Address of its channels, a multiple of 4096.
    pub channels: u64,
    /// Bytes reserved for them: [`NodeDescription::channels_size`].
    pub channels_size: u64,
    /// The node's memory map, ascending.
    pub e820: Vec<E820Entry>,
    /// The kernel's whole command line.
    pub command_line: String,
    /// The user's `panic=`, which is not passed to the kernel: seconds from a panic to a restart of
    /// the node, at once if negative, 0 for none.
    pub panic_s: i32,
}

/// Lays out `node`.
///
/// # Errors
/// [`LayoutError`] if the description is inconsistent, or something does not fit.
pub fn lay_out(node: &NodeDescription) -> Result<Layout, LayoutError> {
    let parts = Parts::of(node)?;
    let firmware_size = firmware::Addresses::size(&parts.sizes());
    let placement = placement::place(&parts.memory.high, &needs(node, &parts, firmware_size)?)?;
    Ok(parts.assemble(node, &placement))
}

/// The checked parts of a node, before placement.
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
    /// Checks the description and makes all that does not depend on addresses.
    fn of(node: &NodeDescription<'a>) -> Result<Self, LayoutError> {
        let header = SetupHeader::of(node.kernel)?;
        let memory = Memory::of(node.chunks, node.persistent)?;
        let processors = Processors::of(node.kernel.format, node.cpus, node.spare_cpus)?;
        pci::check(node.buses, &memory)?;
        if node.tsc_khz == 0 {
            return Err(LayoutError::NoTscFrequency);
        }
        if !chunk::is_low_page(node.trampoline) {
            return Err(LayoutError::InvalidTrampoline {
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
            has_config_ports: node.buses.iter().any(|bus| bus.ecam().is_none()),
            is_confined: node.is_confined,
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
            generation: generation::number(tboot),
            channels: Chunk {
                start: addresses.channels,
                size: self.channels_size,
            },
        };
        acpi::tables(addresses.acpi, &description)
    }

    /// Makes the layout from the placement.
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
            generation: generation::number(tboot.start),
            channels: addresses.channels,
            channels_size: node.channels_size,
            e820,
            command_line: self.command_line.text,
            panic_s: self.command_line.panic_s,
        }
    }
}

/// The sizes to place, after checks of the kernel's.
fn needs(node: &NodeDescription, parts: &Parts, firmware: u64) -> Result<Needs, LayoutError> {
    let kernel = node.kernel;
    let invalid = |what| Err(LayoutError::InvalidKernel { what });
    if !kernel.alignment.is_power_of_two() {
        return invalid("its alignment is not a power of two");
    }
    if kernel.entry_offset >= kernel.footprint {
        return invalid("its entry point is outside of it");
    }
    Ok(Needs {
        kernel: kernel.footprint,
        kernel_alignment: kernel.alignment.max(PAGE),
        kernel_min: parts.header.load_address_min(),
        initrd: node.initrd_size,
        firmware,
    })
}

//! Description of the machine by firmware and loader: `boot_params`, the memory map, the command
//! line and ACPI tables, as for any Linux node.
//!
//! The base wrote it before the start; it is trusted and read once.

pub mod acpi;
pub mod bytes;
pub mod command_line;
pub mod error;
pub mod memory_map;

use alloc::vec::Vec;

use crate::hw::boot_info::acpi::{PciBus, Register, Tables};
use crate::hw::boot_info::bytes::Reader;
use crate::hw::boot_info::command_line::CommandLine;
use crate::hw::boot_info::error::BootInfoError;
use crate::hw::boot_info::memory_map::MemoryRange;

/// Description of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootInfo {
    /// Free memory, ascending; the kernel's image is in one of the ranges.
    pub memory: Vec<MemoryRange>,
    /// Memory in other use that the kernel may read.
    pub reserved: Vec<MemoryRange>,
    /// Local APIC ids of the cores to start; the first is the boot core.
    pub cores: Vec<u32>,
    /// Register that powers off, and its value.
    pub power_off: Register,
    /// Register that resets.
    pub reset: Register,
    /// Address of the word that receives the vector of the power button.
    pub power_button: u64,
    /// Memory shared with the base: channels, and behind them the delegation area.
    pub shared_memory: Option<MemoryRange>,
    /// PCI buses, each with what the node was given on it.
    pub buses: Vec<PciBus>,
    /// The kernel's command line.
    pub command_line: CommandLine,
}

/// Offsets in `struct boot_params` (arch/x86/include/uapi/asm/bootparam.h of Linux).
const ACPI_RSDP: u64 = 0x70;
const COMMAND_LINE_HIGH: u64 = 0xc8;
const COMMAND_LINE: u64 = 0x228;

impl BootInfo {
    /// Reads the description that starts at `boot_params`.
    ///
    /// # Errors
    /// [`BootInfoError`].
    pub fn read(reader: &Reader, boot_params: u64) -> Result<Self, BootInfoError> {
        let low = reader.u32(boot_params + COMMAND_LINE)?;
        let high = reader.u32(boot_params + COMMAND_LINE_HIGH)?;
        let command_line = u64::from(high) << 32 | u64::from(low);
        let command_line = CommandLine::read(reader, command_line)?;
        let (memory, reserved) = memory_map::read(reader, boot_params)?;
        let tables = Tables::read(reader, reader.u64(boot_params + ACPI_RSDP)?)?;
        let cores = command_line.cores_of(&tables.processors);
        if cores.is_empty() {
            return Err(BootInfoError::Missing("a processor"));
        }
        Ok(Self {
            memory,
            reserved,
            cores,
            power_off: tables.power_off,
            reset: tables.reset,
            power_button: tables.io_apic + acpi::IO_APIC_WINDOW,
            shared_memory: tables.shared_memory,
            buses: tables.buses,
            command_line,
        })
    }
}

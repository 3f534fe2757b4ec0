//! The machine as this kernel's firmware and loader describe it: `boot_params`, the memory map, the
//! command line and ACPI tables, as any Linux node is given them.
//!
//! They were written by the base before the start and are believed; they are read once.

mod acpi;
mod bytes;
mod command_line;
mod memory_map;

use alloc::vec::Vec;

pub use bytes::{OutOfPlace, Reader};
pub use command_line::CommandLine;
pub use memory_map::Stretch;

/// All that is to be known of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Free memory, ascending; the kernel's image lies in one of the stretches.
    pub memory: Vec<Stretch>,
    /// Memory that others use, and the kernel may read.
    pub reserved: Vec<Stretch>,
    /// Local APIC ids of the cores to start with; the first is that which boots.
    pub cores: Vec<u32>,
    /// The byte that powers off, and what to write there.
    pub power_off: Register,
    /// The byte that resets.
    pub reset: Register,
    /// The word to which the vector of the power button is written.
    pub power_button: u64,
    /// What the base and this kernel share: channels, and behind them the delegation area.
    pub shared: Option<Stretch>,
    /// What the kernel was told.
    pub command_line: CommandLine,
}

/// A register that is a byte in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Register {
    /// Its physical address.
    pub address: u64,
    /// What to write there.
    pub value: u8,
}

/// Why the description cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorldError {
    /// It leads out of memory.
    Place(OutOfPlace),
    /// It lacks something.
    Missing(&'static str),
}

impl From<OutOfPlace> for WorldError {
    fn from(error: OutOfPlace) -> Self {
        Self::Place(error)
    }
}

/// Offsets in `struct boot_params` (arch/x86/include/uapi/asm/bootparam.h of Linux).
const ACPI_RSDP: u64 = 0x70;
const COMMAND_LINE_HIGH: u64 = 0xc8;
const COMMAND_LINE: u64 = 0x228;

impl World {
    /// Reads it, beginning with `boot_params`, by a reader of physical memory.
    ///
    /// # Errors
    /// [`WorldError`].
    pub fn read(reader: &Reader, boot_params: u64) -> Result<Self, WorldError> {
        let low = reader.u32(boot_params + COMMAND_LINE)?;
        let high = reader.u32(boot_params + COMMAND_LINE_HIGH)?;
        let command_line = u64::from(high) << 32 | u64::from(low);
        let command_line = CommandLine::read(reader, command_line)?;
        let (memory, reserved) = memory_map::read(reader, boot_params)?;
        let tables = acpi::Tables::read(reader, reader.u64(boot_params + ACPI_RSDP)?)?;
        let cores = command_line.cores_of(&tables.processors);
        if cores.is_empty() {
            return Err(WorldError::Missing("a processor"));
        }
        Ok(Self {
            memory,
            reserved,
            cores,
            power_off: tables.power_off,
            reset: tables.reset,
            power_button: tables.io_apic + acpi::IO_APIC_WINDOW,
            shared: tables.shared,
            command_line,
        })
    }
}

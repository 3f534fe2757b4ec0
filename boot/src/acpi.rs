//! The ACPI tables that describe a node to its kernel.
//!
//! RSDP -> XSDT -> FADT (-> DSDT), MADT, MCFG for a node with PCI buses, and NFIT for one with
//! persistent memory, contiguous in memory. There is no FACS (not needed on hardware-reduced
//! platforms), and no table that would describe a device of the base: no HPET, DMAR, SPCR.
//!
//! Source: ACPI specification 6.5, section 5.2.

mod dsdt;
mod fadt;
mod madt;
mod nfit;
mod pci;

use crate::chunk::Chunk;
use crate::pci::PciBus;
use crate::processors::Processors;
use acpi_tables::{Aml, rsdp::Rsdp, xsdt::XSDT};

const OEM_ID: [u8; 6] = *b"INSULA";
const OEM_TABLE_ID: [u8; 8] = *b"NODE    ";
const OEM_REVISION: u32 = 1;
/// Alignment of each table.
const TABLE_ALIGNMENT: usize = 64;

/// Contents of the tables. Addresses are physical.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Description<'a> {
    pub(crate) processors: Processors<'a>,
    pub(crate) io_apic: u64,
    /// The node's PCI buses.
    pub(crate) buses: &'a [PciBus<'a>],
    /// Persistent memory, ascending.
    pub(crate) persistent: &'a [Chunk],
    /// The byte that powers the node off.
    pub(crate) power_off: u64,
    /// The byte that resets it.
    pub(crate) reset: u64,
    /// Its generation.
    pub(crate) generation: u64,
    /// Memory of its channels; empty if there are none.
    pub(crate) channels: Chunk,
}

/// The tables for address `base`, a multiple of 64; the RSDP is at `base`.
///
/// The size does not depend on any address.
pub(crate) fn tables(base: u64, description: &Description) -> Vec<u8> {
    let mut run = Run {
        base,
        bytes: vec![0; Rsdp::len()],
    };
    let dsdt = run.add(dsdt::table(description).as_slice());
    let fadt = run.add(&to_bytes(&fadt::table(dsdt, description)));
    let madt = run.add(madt::table(description).as_slice());
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    if pci::has_mcfg(description.buses) {
        xsdt.add_entry(run.add(&to_bytes(&pci::mcfg(description.buses))));
    }
    if !description.persistent.is_empty() {
        xsdt.add_entry(run.add(nfit::table(description.persistent).as_slice()));
    }
    let xsdt = run.add(&to_bytes(&xsdt));
    let rsdp = to_bytes(&Rsdp::new(OEM_ID, xsdt));
    run.bytes[..rsdp.len()].copy_from_slice(&rsdp);
    run.bytes
}

/// Concatenated tables.
struct Run {
    base: u64,
    bytes: Vec<u8>,
}

impl Run {
    /// Appends a table and returns its address.
    fn add(&mut self, table: &[u8]) -> u64 {
        let start = self.bytes.len().next_multiple_of(TABLE_ALIGNMENT);
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(table);
        self.base + start as u64
    }
}

fn to_bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

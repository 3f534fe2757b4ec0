//! Lays out the memory of a confined node's monitor.
//!
//! The monitor's memory is one chunk that its node cannot reach:
//!
//! ```text
//! image | struct insula_monitor, its functions | BIOS data area | zero page | reset page
//! | MSI-X tables | page table | nested page table | core areas
//! ```
//!
//! Two page tables are made here, so that the monitor itself writes none. Its own maps this chunk at
//! the image's link address, and the page from which cores start. The *nested* one translates what
//! the node takes for physical addresses: it maps the node's memory one to one, and nothing else of
//! the machine. What Linux looks for below 1 MiB it finds in pages of the monitor: a BIOS data area of
//! its own, and zeros, read-only, in place of firmware and devices. The reset vector has code that
//! halts: a core waits there for its start-up IPI.
//!
//! Registers of its PCI functions are mapped as they are, not cached. Messages (MSI-X) are not for a node to
//! program: it has a page of memory in place of each table.
//!
//! Sources: AMD APM volume 2, 15.25 "Nested Paging"; Intel SDM volume 3, 29.3 "The Extended Page Table
//! Mechanism (EPT)".

use std::ops::Range;

use insula_abi::monitor::{
    MONITOR_CORE_SIZE, MONITOR_MAGIC, MONITOR_REVISION, MONITOR_STATE, Message, Monitor,
    MonitorCore, MonitorFunction,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::chunk::{Chunk, LOWMEM_LIMIT, Memory, PAGE};
use crate::page_table::{Access, PageTable, Use};
use crate::{ConfinedFunction, Layout, LayoutError, NodeDescription, PciBus, Piece, pci};

/// Link address of the monitor's image (`bare/image.ld`).
const LINK_ADDRESS: u64 = 0xffff_ffff_8100_0000;
/// What Linux reads without being told to: firmware and video memory, and the registers of Trusted
/// Execution (`tboot_get_dmar_table` of arch/x86/kernel/tboot.c), where zeros mean that there is no other
/// table of IOMMUs.
const ABSENT: [Range<u64>; 2] = [0..LOWMEM_LIMIT, 0xfed3_0000..0xfed4_0000];
/// The page that holds the reset vector, and the vector's offset in it (AMD APM volume 2, 14.1.5, less
/// the high address bits, which the first far jump clears).
const RESET_PAGE: u64 = 0xff000;
const RESET_OFFSET: usize = 0xff0;
/// `hlt; jmp` back to it.
const HALT: [u8; 3] = [0xf4, 0xeb, 0xfd];

/// Kinds of nested page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NestedPaging {
    /// AMD's.
    Npt,
    /// Intel's.
    Ept,
}

/// A confined node.
#[derive(Debug, Clone, Copy)]
pub struct ConfinedNode<'a> {
    /// The node.
    pub node: &'a NodeDescription<'a>,
    /// The processors' kind of nested page tables.
    pub nested_paging: NestedPaging,
    /// The monitor's image.
    pub image: &'a kimage::Loadable,
}

/// A copy of a confined node: it takes addresses of the original for physical ones.
#[derive(Debug, Clone, Copy)]
pub struct ConfinedCopy<'a> {
    /// Local APIC ids of its cores, in the order of the original's.
    pub cpus: &'a [u32],
    /// Those of the original's, by which its kernel knows them.
    pub known_cpus: &'a [u32],
    /// The states that the original's cores have left.
    pub states: &'a [&'a [u8]],
    /// The original's memory, and the frames that have its content.
    pub memory: &'a [SharedMemory],
    /// Added to the time stamp counter.
    pub tsc_offset: u64,
    /// Vector of an interrupt that its first core gets as it goes on, if any.
    pub interrupt: Option<u8>,
    /// Physical address of the page from which cores start, below 1 MiB.
    pub trampoline: u64,
    /// The processors' kind of nested page tables.
    pub nested_paging: NestedPaging,
    /// The monitor's image.
    pub image: &'a kimage::Loadable,
}

/// Memory that a copy reads and does not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// The address that the copy takes for physical.
    pub address: u64,
    /// Its frames.
    pub frames: Chunk,
}

/// Layout of a monitor's memory. Addresses are physical unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorLayout {
    /// Load address of the image.
    pub image: u64,
    /// All other contents: disjoint, within the monitor's chunk.
    pub pieces: Vec<Piece>,
    /// Offset of `struct insula_monitor` in the chunk.
    pub header: u64,
    /// Virtual address at which each core enters the monitor.
    pub entry: u64,
    /// The monitor's page table.
    pub page_table: u64,
    /// Virtual address of the first core's area, an argument of the entry.
    pub argument: u64,
}

/// What the layout depends on.
struct Plan<'a> {
    image: &'a kimage::Loadable,
    nested_paging: NestedPaging,
    trampoline: u64,
    /// Local APIC ids of the cores that have areas.
    cpus: Vec<u32>,
    /// Those by which the node's kernel knows them.
    known_cpus: &'a [u32],
    /// What they go on from; empty if they start.
    states: &'a [&'a [u8]],
    tsc_offset: u64,
    interrupt: Option<u8>,
    memory: Vec<(u64, Chunk, Access)>,
    buses: &'a [PciBus<'a>],
}

impl Plan<'_> {
    fn cores(&self) -> impl Iterator<Item = (MonitorCore, Option<&[u8]>)> + '_ {
        let cpus = self.cpus.iter().copied().zip(0..);
        cpus.map(|(apic_id, index)| {
            let known = self.known_cpus.get(index as usize).copied();
            let core = MonitorCore {
                apic_id,
                index,
                guest_apic_id: known.unwrap_or(apic_id).into(),
                ..MonitorCore::default()
            };
            (core, self.states.get(index as usize).copied())
        })
    }
}

impl ConfinedCopy<'_> {
    fn plan(&self) -> Plan<'_> {
        let memory = self.memory.iter();
        Plan {
            image: self.image,
            nested_paging: self.nested_paging,
            trampoline: self.trampoline,
            cpus: self.cpus.to_vec(),
            known_cpus: self.known_cpus,
            states: self.states,
            tsc_offset: self.tsc_offset,
            interrupt: self.interrupt,
            memory: memory
                .map(|one| (one.address, one.frames, Access::ReadOnly))
                .collect(),
            buses: &[],
        }
    }

    /// Bytes of contiguous memory that the monitor needs, a multiple of 4096.
    #[must_use]
    pub fn monitor_size(&self) -> u64 {
        size(&self.plan())
    }

    /// Lays out the monitor in `chunk`, whose start is a multiple of 2 MiB.
    ///
    /// # Errors
    /// [`LayoutError`] if it does not fit.
    pub fn lay_out_monitor(&self, chunk: Chunk) -> Result<MonitorLayout, LayoutError> {
        lay_out(&self.plan(), None, chunk)
    }
}

fn size(plan: &Plan<'_>) -> u64 {
    let somewhere = Chunk { start: 0, size: 0 };
    let size = Parts::of(plan, somewhere, 0).size;
    Parts::of(plan, somewhere, size).size
}

/// Lays out a monitor; without `layout` its cores go on from states.
fn lay_out(
    plan: &Plan<'_>,
    layout: Option<&Layout>,
    chunk: Chunk,
) -> Result<MonitorLayout, LayoutError> {
    let parts = Parts::of(plan, chunk, chunk.size);
    if parts.size > chunk.size {
        let needed = parts.size;
        return Err(LayoutError::MonitorDoesNotFit { needed });
    }
    Ok(parts.assemble(plan, layout))
}

impl ConfinedNode<'_> {
    fn plan(&self) -> Result<Plan<'_>, LayoutError> {
        let node = self.node;
        pci::check_confined(node.buses)?;
        let memory = Memory::of(node.chunks, node.persistent)?;
        let all = memory.all().chain(memory.persistent.iter().copied());
        Ok(Plan {
            image: self.image,
            nested_paging: self.nested_paging,
            trampoline: node.trampoline,
            // Those that it starts with, then those that may be added.
            cpus: [node.cpus, node.spare_cpus].concat(),
            known_cpus: &[],
            states: &[],
            tsc_offset: 0,
            interrupt: None,
            memory: all
                .map(|chunk| (chunk.start, chunk, Access::Write))
                .collect(),
            buses: node.buses,
        })
    }

    /// Bytes of contiguous memory that the monitor needs, a multiple of 4096.
    ///
    /// # Errors
    /// [`LayoutError`] if the node's description is inconsistent.
    pub fn monitor_size(&self) -> Result<u64, LayoutError> {
        Ok(size(&self.plan()?))
    }

    /// Lays out the monitor in `chunk`, whose start is a multiple of 2 MiB, for the node with `layout`.
    ///
    /// # Errors
    /// [`LayoutError`] if the node's description is inconsistent, or something does not fit.
    pub fn lay_out_monitor(
        &self,
        layout: &Layout,
        chunk: Chunk,
    ) -> Result<MonitorLayout, LayoutError> {
        lay_out(&self.plan()?, Some(layout), chunk)
    }
}

/// Offsets in the chunk, and the tables.
struct Parts {
    chunk: Chunk,
    header: u64,
    reset: u64,
    /// Pages in place of MSI-X tables.
    messages: u64,
    page_table: (u64, PageTable),
    nested: (u64, PageTable),
    cores: u64,
    size: u64,
}

impl Parts {
    /// Places everything in `chunk`, of which the monitor maps `mapped` bytes.
    fn of(plan: &Plan<'_>, chunk: Chunk, mapped: u64) -> Self {
        let buses = plan.buses;
        let header = plan.image.footprint.next_multiple_of(PAGE);
        let header_size = size_of::<Monitor>() + size_of_val(&functions(buses, |_| 0)[..]);
        let bios_data = header + (header_size as u64).next_multiple_of(PAGE);
        let (zero, reset, messages) =
            (bios_data + PAGE, bios_data + 2 * PAGE, bios_data + 3 * PAGE);
        let page = |offset| Chunk {
            start: chunk.start + offset,
            size: PAGE,
        };
        let mut own = PageTable::new(Use::Kernel);
        own.map(Chunk {
            start: plan.trampoline,
            size: PAGE,
        });
        let all = Chunk {
            start: chunk.start,
            size: mapped,
        };
        own.map_at(LINK_ADDRESS, all, Access::Write);
        let mut nested = PageTable::new(match plan.nested_paging {
            NestedPaging::Npt => Use::Npt,
            NestedPaging::Ept => Use::Ept,
        });
        for start in ABSENT
            .into_iter()
            .flat_map(|range| range.step_by(PAGE as usize))
        {
            nested.map_at(start, page(zero), Access::ReadOnly);
        }
        nested.map_at(0, page(bios_data), Access::Write);
        nested.map_at(RESET_PAGE, page(reset), Access::ReadOnly);
        for &(address, frames, access) in &plan.memory {
            nested.map_at(address, frames, access);
        }
        for (index, bus) in (0..).zip(buses) {
            map_function(&mut nested, bus, page(messages + index * PAGE));
        }
        let own_at = messages + buses.len() as u64 * PAGE;
        let nested_at = own_at + own.size();
        let cores = nested_at + nested.size();
        Self {
            chunk,
            header,
            reset,
            messages,
            page_table: (own_at, own),
            nested: (nested_at, nested),
            cores,
            size: cores + plan.cpus.len() as u64 * MONITOR_CORE_SIZE,
        }
    }

    fn assemble(self, plan: &Plan<'_>, layout: Option<&Layout>) -> MonitorLayout {
        let at = |offset: u64| self.chunk.start + offset;
        let table = |(offset, table): &(u64, PageTable)| (at(*offset), table.to_bytes(at(*offset)));
        let mut pieces = vec![
            (at(self.header), self.header(plan, layout)),
            (
                at(self.header) + size_of::<Monitor>() as u64,
                functions(plan.buses, |index| at(self.messages) + index * PAGE)
                    .as_bytes()
                    .to_vec(),
            ),
            (at(self.reset) + RESET_OFFSET as u64, HALT.to_vec()),
            table(&self.page_table),
            table(&self.nested),
        ];
        let tables = (self.messages..).step_by(PAGE as usize);
        let buses = plan.buses.iter().filter_map(PciBus::confined);
        pieces.extend(
            tables
                .zip(buses)
                .map(|(offset, function)| (at(offset), masked(function))),
        );
        let areas = (self.cores..).step_by(MONITOR_CORE_SIZE as usize);
        for (offset, (core, state)) in areas.zip(plan.cores()) {
            let core = MonitorCore {
                header: LINK_ADDRESS + self.header,
                ..core
            };
            pieces.push((at(offset), core.as_bytes().to_vec()));
            pieces.extend(state.map(|state| (at(offset + MONITOR_STATE), state.to_vec())));
        }
        let pieces = pieces.into_iter();
        MonitorLayout {
            image: self.chunk.start,
            pieces: pieces
                .map(|(address, bytes)| Piece { address, bytes })
                .collect(),
            header: self.header,
            entry: LINK_ADDRESS + plan.image.entry_offset,
            page_table: at(self.page_table.0),
            argument: LINK_ADDRESS + self.cores,
        }
    }

    fn header(&self, plan: &Plan<'_>, layout: Option<&Layout>) -> Vec<u8> {
        let at = |offset: u64| self.chunk.start + offset;
        let header = Monitor {
            magic: MONITOR_MAGIC,
            revision: MONITOR_REVISION,
            cores_count: plan.cpus.len() as u32,
            cores: at(self.cores),
            nested_page_table: at(self.nested.0),
            entry: layout.map_or(0, |layout| layout.entry),
            page_table: layout.map_or(0, |layout| layout.page_table),
            argument: layout.map_or(0, |layout| layout.argument),
            functions: at(self.header) + size_of::<Monitor>() as u64,
            functions_count: plan.buses.len() as u32,
            goes_on: layout.is_none().into(),
            tsc_offset: plan.tsc_offset,
            interrupt: plan.interrupt.map_or(0, u64::from),
            ..Monitor::new_zeroed()
        };
        header.as_bytes().to_vec()
    }
}

/// The functions as the monitor finds them, if the page for the messages of the one with an index is at an
/// address.
fn functions(buses: &[PciBus], messages: impl Fn(u64) -> u64) -> Vec<MonitorFunction> {
    let functions = buses
        .iter()
        .filter_map(|bus| Some((bus.number, bus.confined()?)));
    functions
        .zip(0..)
        .map(|((bus, function), index)| MonitorFunction {
            address: u32::from(bus) << 8 | u32::from(function.number),
            messages_count: function.messages,
            messages: messages(index),
            config: function.config,
            writable: function.writable,
        })
        .collect()
}

/// A table of messages that are masked, as after a reset.
fn masked(function: &ConfinedFunction) -> Vec<u8> {
    let message = Message {
        control: 1,
        ..Message::default()
    };
    vec![message; function.messages as usize]
        .as_bytes()
        .to_vec()
}

/// Maps the registers of a bus' function, with `messages` in place of its MSI-X table.
fn map_function(nested: &mut PageTable, bus: &PciBus, messages: Chunk) {
    let Some(function) = bus.confined() else {
        return;
    };
    let table = function.message_table;
    for window in bus.windows {
        let below = (window.start, window.end().min(table.start));
        let above = (window.start.max(table.end()), window.end());
        for (start, end) in [below, above] {
            if start < end {
                let range = Chunk::between(start, end);
                nested.map_at(start, range, Access::Device);
            }
        }
    }
    nested.map_at(table.start, messages, Access::Write);
}

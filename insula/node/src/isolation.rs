//! Isolation: whether a node is trusted to stay in its part of the machine, or confined to it by a
//! monitor (docs/src/isolation.md).

use clap::ValueEnum;
use insula_abi as abi;
use insula_abi::monitor::NodeConfine;
use insula_base::error::Error;
use insula_base::units::Size;
use insula_boot::monitor::{MonitorLayout, NestedPaging};
use insula_boot::{Layout, LayoutError};
use insula_driver::{CallError, Driver, Memory, Node};
use insula_image::{Bootable, LoadError};
use serde::{Deserialize, Serialize};

use crate::setup::Setup;

/// What keeps a node in its part of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Nothing: it is trusted.
    #[default]
    Direct,
    /// A thin monitor on its own cores, by the processors' virtualization.
    Vmm,
}

/// Why a node was not confined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfineError {
    /// Its monitor could not be laid out.
    #[error(transparent)]
    Layout(#[from] insula_boot::LayoutError),
    /// Its monitor could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The module refused.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Checks that a node can be confined, before anything is taken.
pub(crate) fn check(isolation: Isolation, machine: &abi::Machine) -> Result<(), Error> {
    let is_missing = machine.flags & abi::MACHINE_VIRTUALIZES == 0;
    match isolation {
        Isolation::Vmm if is_missing => Err(no_virtualization()),
        _ => Ok(()),
    }
}

/// The kind of nested page table that the machine's processors have.
pub(crate) const fn nested_paging(machine: &abi::Machine) -> NestedPaging {
    match machine.flags & abi::MACHINE_VMX {
        0 => NestedPaging::Npt,
        _ => NestedPaging::Ept,
    }
}

/// A monitor for a node: its image, and its memory.
pub(crate) struct Monitor {
    image: Bootable,
    memory: Memory,
}

impl Monitor {
    /// Allocates the memory of a node's monitor; `None` if it is not confined.
    pub(crate) fn allocate(driver: &Driver, setup: &Setup<'_>) -> Result<Option<Self>, Error> {
        if setup.spec.isolation == Isolation::Direct {
            return Ok(None);
        }
        let image = Bootable::monitor()?;
        let needed = setup.monitor_size(&image.loadable);
        Self::with_size(driver, image, needed.map_err(cannot_lay_out)?).map(Some)
    }

    /// A monitor that needs that many bytes.
    pub(crate) fn with_size(driver: &Driver, image: Bootable, needed: u64) -> Result<Self, Error> {
        // A power of two is taken as one chunk.
        let size = needed.max(abi::GRANULE).next_power_of_two();
        let memory = driver
            .create_memory()
            .map_err(|error| no_memory(size, error))?;
        memory
            .grow(&abi::Request {
                size,
                min_phys: abi::LOWMEM_LIMIT,
                max_phys: 0,
                chunk_max: size,
                numa_node: abi::NUMA_ANY,
                flags: abi::REQUEST_BLOCKS,
            })
            .map_err(|error| no_memory(size, error))?;
        Ok(Self { image, memory })
    }

    /// The monitor of a node that was started before; `None` if it is not confined.
    pub(crate) fn of(node: &Node, isolation: Isolation) -> Result<Option<Self>, Error> {
        if isolation == Isolation::Direct {
            return Ok(None);
        }
        let memory = node.monitor();
        let memory = memory.map_err(|error| Error::new("the monitor is missing").because(error))?;
        let image = Bootable::monitor()?;
        Ok(Some(Self { image, memory }))
    }

    /// Writes the monitor for the next start of a node, and attaches it.
    pub(crate) fn confine(
        &self,
        node: &Node,
        setup: &Setup<'_>,
        layout: &Layout,
    ) -> Result<(), ConfineError> {
        let image = &self.image.loadable;
        self.attach(node, |chunk| setup.lay_out_monitor(layout, image, chunk))
    }

    /// The same, laid out by `lay_out`.
    pub(crate) fn attach(
        &self,
        node: &Node,
        lay_out: impl FnOnce(insula_boot::Chunk) -> Result<MonitorLayout, LayoutError>,
    ) -> Result<(), ConfineError> {
        let failed = LoadError::Driver;
        let mut mapping = self.memory.map().map_err(failed)?;
        let chunk = mapping.chunks().next();
        let chunk = chunk.map_or(insula_boot::Chunk { start: 0, size: 0 }, |chunk| {
            insula_boot::Chunk {
                start: chunk.start,
                size: chunk.size,
            }
        });
        let monitor = lay_out(chunk)?;
        self.image
            .load(&self.memory, &mut mapping, monitor.image, 0)?;
        for piece in &monitor.pieces {
            let written = mapping.write_at(piece.address, &piece.bytes);
            written.map_err(LoadError::Range)?;
        }
        node.confine(
            &self.memory,
            NodeConfine {
                memory: -1,
                flags: 0,
                header: monitor.header,
                entry: monitor.entry,
                page_table: monitor.page_table,
                argument: monitor.argument,
            },
        )?;
        Ok(())
    }
}

fn no_virtualization() -> Error {
    Error::new(
        "a node cannot be confined here: that needs virtualization with nested paging, AMD's (SVM) or \
         Intel's (VMX, with unrestricted guests), not disabled by firmware, and x2APIC mode",
    )
    .untouched()
    .hint("`insula machine check` says what is missing; without --isolation vmm the node is trusted")
}

fn cannot_lay_out(error: insula_boot::LayoutError) -> Error {
    Error::new("the node's monitor cannot be laid out")
        .because(error)
        .nothing_kept()
}

fn no_memory(size: u64, error: CallError) -> Error {
    let size = Size(size);
    Error::new(format!(
        "{size} of contiguous memory for the node's monitor could not be allocated"
    ))
    .because(error)
    .nothing_kept()
    .hint("reserve memory early after boot with `insula machine reserve --memory`")
}

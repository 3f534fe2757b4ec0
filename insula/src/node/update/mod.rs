//! More for a node that runs, or less: cores and memory.
//!
//! Two kernels have to agree. More: the base takes it, gives it to the node, and asks the node's
//! kernel to use it. Less: the base asks the node's kernel to let go of it, then takes it. Who asks
//! is this process, who obeys is our module in the node (`kmod/inside_resize.c`), and each step may
//! be repeated: whatever comes in between, all is the base's or the node's, and the next update, or
//! the node's end, brings it in order.

mod control;
mod error;
mod plan;

use insula_abi as abi;
use insula_abi::order::OrderKind;
use nix::errno::Errno;

use super::{Handle, NodeView, find};
use crate::cores::{Chosen, View};
use crate::driver::{Driver, DriverError, Memory};
use crate::memory::{MemorySpec, check_available};
use crate::name::Name;
use crate::root::Root;
use crate::topology::{BaseMemory, Topology};
use crate::units::{Change, Size};
use crate::virtio;

use control::{Control, Step, all_or_none, undo};
pub use error::UpdateError;
use plan::Present;

/// How often cores are chosen anew when somebody else was faster.
const CHOICES_MAX: u32 = 8;

/// What is to become of a node that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateRequest {
    /// Of the number of its cores.
    pub cpus: Option<Change<u32>>,
    /// Of its memory.
    pub memory: Option<Change<Size>>,
}

/// Gives a node that runs more cores and memory, or takes some back. Answers what it is then.
///
/// # Errors
/// [`UpdateError`]; what it says of the node holds then.
pub fn update(
    driver: &Driver,
    root: &Root,
    name: &Name,
    request: UpdateRequest,
) -> Result<NodeView, UpdateError> {
    let mut handle = find(driver, name)?;
    if !handle.is_running() {
        return Err(UpdateError::NotRunning(name.clone()));
    }
    let chunks = handle.node.memory().and_then(|memory| memory.chunks());
    let chunks = chunks.map_err(DriverError::from)?;
    let present = Present::of(name, &handle, &chunks)?;
    let cores = present.cores(request.cpus)?;
    let control = Control::open(&handle.node, name)?;
    let memory = present.memory(request.memory, control.memory_block())?;
    let mut update = Update {
        driver,
        root,
        handle: &handle,
        present: &present,
        control,
    };
    update.grow(cores.more(), memory.more())?;
    update.shrink(cores.fewer(), memory.fewer())?;
    drop(update);
    handle.refresh().map_err(DriverError::from)?;
    Ok(handle.view())
}

/// An update under way, of a node whose kernel listens.
struct Update<'a> {
    driver: &'a Driver,
    root: &'a Root,
    handle: &'a Handle,
    present: &'a Present<'a>,
    control: Control<'a>,
}

impl Update<'_> {
    fn name(&self) -> Name {
        self.present.name.clone()
    }

    /// Gives so many cores and bytes to the node, and has it use them.
    fn grow(&mut self, cpus: u32, bytes: u64) -> Result<(), UpdateError> {
        if cpus == 0 && bytes == 0 {
            self.resize_devices(self.present.chunks_count())?;
            return self.use_all(&[], &[]);
        }
        self.check(bytes)?;
        let memory = match bytes {
            0 => None,
            _ => Some(self.take_memory(bytes)?),
        };
        let chunks = memory.as_ref().map_or(Ok(Vec::new()), Memory::chunks);
        let chunks = chunks.map_err(DriverError::from)?;
        let chosen = self.give(cpus, memory.as_ref())?;
        let before = self.present.chunks_count();
        let used = self
            .resize_devices(before + chunks.len())
            .and_then(|()| self.use_all(&chosen, &chunks));
        if used.as_ref().is_err_and(UpdateError::is_undone) {
            // They had it before. If nobody answers, the module takes the memory from them.
            let _ = self.resize_devices(before);
            self.take_back(&numbers(&chosen), chunks.len())?;
        }
        used
    }

    /// Refuses what cannot be had, before anything is taken.
    fn check(&self, bytes: u64) -> Result<(), UpdateError> {
        let (machine, _) = self.driver.machine().map_err(DriverError::from)?;
        let spec = MemorySpec {
            size: Size(bytes),
            ..MemorySpec::default()
        };
        let (topology, base) = (Topology::read(self.root), BaseMemory::read(self.root));
        Ok(check_available(
            &[spec],
            &topology,
            base,
            machine.pool_free,
        )?)
    }

    /// Memory in the blocks in which the node's kernel takes it; ours until it is given.
    fn take_memory(&self, bytes: u64) -> Result<Memory, UpdateError> {
        let block = self.control.memory_block();
        let memory = self.driver.create_memory().map_err(DriverError::from)?;
        let taken = memory.grow(&abi::Request {
            size: bytes,
            min_phys: 0,
            max_phys: 0,
            chunk_max: block,
            numa_node: abi::NUMA_ANY,
            flags: abi::REQUEST_BLOCKS,
        });
        taken.map_err(|error| match error.errno {
            Errno::ENOMEM | Errno::EBUSY => UpdateError::NoBlocks {
                asked: Size(bytes),
                block: Size(block),
            },
            _ => DriverError::from(error).into(),
        })?;
        Ok(memory)
    }

    /// Makes all of it the node's at once: from then on it goes with the node.
    fn give(&self, count: u32, memory: Option<&Memory>) -> Result<Vec<Chosen>, UpdateError> {
        for _ in 0..CHOICES_MAX {
            let (_, cpus) = self.driver.machine().map_err(DriverError::from)?;
            let view = View::new(&Topology::read(self.root), &cpus);
            let room = &self.present.room;
            let chosen = view.choose_among(room, count);
            let chosen = chosen.ok_or_else(|| UpdateError::Taken {
                name: self.name(),
                asked: count,
                free: view.free_among(room),
            })?;
            let Err(error) = self.handle.node.grow(&numbers(&chosen), memory) else {
                return Ok(chosen);
            };
            match error.errno {
                // Taken, or switched off, since we looked.
                Errno::EBUSY | Errno::ENODEV => {}
                Errno::EALREADY => return Err(UpdateError::NotRunning(self.name())),
                _ => return Err(DriverError::from(error).into()),
            }
        }
        Err(UpdateError::Contended)
    }

    /// Has the node's devices work with its first `chunks` chunks of memory: with new ones before its
    /// kernel uses them, with those that go no more before the base has them.
    fn resize_devices(&self, chunks: usize) -> Result<(), UpdateError> {
        let resized = virtio::resize(self.handle.info.id, chunks);
        resized.map_err(|source| UpdateError::Devices {
            name: self.name(),
            source,
        })
    }

    /// Has the node's kernel use these, and what else an interrupted update has left unused.
    fn use_all(&mut self, chosen: &[Chosen], chunks: &[abi::Chunk]) -> Result<(), UpdateError> {
        let left = self.present.cpus.iter().map(|cpu| cpu.apic_id);
        let left = left.map(|id| Step::cpu(OrderKind::CPU_ON, id));
        let added = self.present.added().iter();
        let left = left.chain(added.map(|chunk| Step::memory(OrderKind::MEMORY_ADD, *chunk)));
        let new = chosen.iter().map(|one| one.apic_id);
        let new = new.map(|id| Step::cpu(OrderKind::CPU_ON, id));
        let memory = chunks.iter();
        let new = new.chain(memory.map(|chunk| Step::memory(OrderKind::MEMORY_ADD, *chunk)));
        let steps: Vec<_> = left
            .chain(new.map(|step| step.undone_by_opposite()))
            .collect();
        all_or_none(&mut self.control, &steps)
    }

    /// Has the node's kernel let go of its last cores and chunks, and takes them.
    fn shrink(&mut self, cpus: usize, chunks: usize) -> Result<(), UpdateError> {
        let (own, added) = (self.present.cpus, self.present.added());
        let cpus = &own[own.len() - cpus..];
        let off = cpus
            .iter()
            .map(|cpu| Step::cpu(OrderKind::CPU_OFF, cpu.apic_id));
        let last = added[added.len() - chunks..].iter().rev();
        let remove = last.map(|chunk| Step::memory(OrderKind::MEMORY_REMOVE, *chunk));
        let steps: Vec<_> = off.chain(remove).map(Step::undone_by_opposite).collect();
        all_or_none(&mut self.control, &steps)?;
        if chunks > 0 {
            let left = self.present.chunks_count() - chunks;
            let resized = self.resize_devices(left);
            resized.or_else(|error| undo(&mut self.control, &steps).and(Err(error)))?;
        }
        let numbers: Vec<u32> = cpus.iter().map(|cpu| cpu.cpu).collect();
        self.take_back(&numbers, chunks)
    }

    fn take_back(&self, cpus: &[u32], chunks: usize) -> Result<(), UpdateError> {
        if cpus.is_empty() && chunks == 0 {
            return Ok(());
        }
        let taken = self.handle.node.shrink(cpus, chunks as u32);
        taken.map_err(|error| match error.errno {
            Errno::EALREADY => UpdateError::NotRunning(self.name()),
            _ => DriverError::from(error).into(),
        })
    }
}

fn numbers(chosen: &[Chosen]) -> Vec<u32> {
    chosen.iter().map(|one| one.cpu).collect()
}

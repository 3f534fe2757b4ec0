//! Adding cores and memory to a running node, and removing them.
//!
//! Both kernels take part. Adding: the base allocates, gives to the node, and asks the node's
//! kernel to use it. Removing: the base asks the node's kernel to stop using it, then takes it
//! back. This process sends the requests, and the module in the node (`kmod/guest/guest_hotplug.c`)
//! executes them. Each step may be repeated: after an interruption everything belongs to the base
//! or the node, and the next update, or the node's end, completes it.

mod error;
mod hotplug;
mod plan;

use insula_abi as abi;
use insula_abi::hotplug::HotplugKind;
use nix::errno::Errno;

use super::{Handle, NodeView, find, is_paused};
use crate::attachment;
use crate::cores::{ChosenCore, Cores};
use crate::memory::{MemorySpec, check_available};

use error::{StepError, module_failed};
use hotplug::{HotplugSession, Step, execute_all, revert};
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::topology::{BaseMemory, Topology};
use insula_base::units::{Change, Size};
use insula_driver::name::Name;
use insula_driver::{Driver, Memory};
use plan::Current;

/// Attempts to take cores that another process may take first.
const CHOICES_MAX: u32 = 8;

/// Changes of a running node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateRequest {
    /// Change of the number of its cores.
    pub cpus: Option<Change<u32>>,
    /// Change of its memory.
    pub memory: Option<Change<Size>>,
}

/// Adds or removes cores and memory of a running node. Returns its new state.
///
/// # Errors
/// Why it was not updated, and what was changed.
pub fn update(
    driver: &Driver,
    root: &Root,
    name: &Name,
    request: UpdateRequest,
) -> Result<NodeView, Error> {
    let mut handle = find(driver, name)?;
    if !handle.is_running() {
        return Err(error::not_running(name));
    }
    if handle.is_paused() {
        return Err(is_paused(name));
    }
    if handle.snapshot().is_some() {
        return Err(error::is_copy(name));
    }
    let chunks = handle.node.memory().and_then(|memory| memory.chunks());
    let chunks = chunks.map_err(module_failed)?;
    let current = Current::of(name, &handle, &chunks)?;
    let cores = current.cores(request.cpus)?;
    let hotplug = HotplugSession::open(&handle, name)?;
    let memory = current.memory(request.memory, hotplug.memory_block())?;
    let mut update = Update {
        driver,
        root,
        handle: &handle,
        current: &current,
        hotplug,
    };
    update.grow(cores.more(), memory.more())?;
    update.shrink(cores.fewer(), memory.fewer())?;
    drop(update);
    handle.refresh().map_err(module_failed)?;
    Ok(handle.view())
}

/// An update in progress.
struct Update<'a> {
    driver: &'a Driver,
    root: &'a Root,
    handle: &'a Handle,
    current: &'a Current<'a>,
    hotplug: HotplugSession<'a>,
}

impl Update<'_> {
    fn name(&self) -> &Name {
        self.current.name
    }

    /// Adds cores and memory to the node, and has its kernel use them.
    fn grow(&mut self, cpus: u32, bytes: u64) -> Result<(), Error> {
        if cpus == 0 && bytes == 0 {
            self.resize_devices(self.current.chunks_count())?;
            return Ok(self.online_all(&[], &[])?);
        }
        self.check(bytes)?;
        let memory = match bytes {
            0 => None,
            _ => Some(self.allocate_memory(bytes)?),
        };
        let chunks = memory.as_ref().map_or(Ok(Vec::new()), Memory::chunks);
        let chunks = chunks.map_err(module_failed)?;
        let chosen = self.give(cpus, memory.as_ref())?;
        let before = self.current.chunks_count();
        let used = self
            .resize_devices(before + chunks.len())
            .and_then(|()| self.online_all(&chosen, &chunks));
        if used.as_ref().is_err_and(|error| error.is_rolled_back) {
            // Switching back should succeed; otherwise the module revokes the memory.
            let _ = self.resize_devices(before);
            self.reclaim(&numbers(&chosen), chunks.len())?;
        }
        Ok(used?)
    }

    /// Checks the available memory before anything is taken.
    fn check(&self, bytes: u64) -> Result<(), Error> {
        let (machine, _) = self.driver.machine().map_err(module_failed)?;
        let spec = MemorySpec {
            size: Size(bytes),
            ..MemorySpec::default()
        };
        let (topology, base) = (Topology::read(self.root), BaseMemory::read(self.root));
        check_available(&[spec], &topology, base, machine.pool_free)
    }

    /// Allocates memory in the node's hotplug blocks; it belongs to this process until given.
    fn allocate_memory(&self, bytes: u64) -> Result<Memory, Error> {
        let block = self.hotplug.memory_block();
        let memory = self.driver.create_memory().map_err(module_failed)?;
        let taken = memory.grow(&abi::Request {
            size: bytes,
            min_phys: 0,
            max_phys: 0,
            chunk_max: block,
            numa_node: abi::NUMA_ANY,
            flags: abi::REQUEST_BLOCKS,
        });
        taken.map_err(|error| match error.errno {
            Errno::ENOMEM | Errno::EBUSY => error::no_blocks(Size(bytes), Size(block)),
            _ => module_failed(error),
        })?;
        Ok(memory)
    }

    /// Gives all of it to the node at once: from then on it is freed with the node.
    fn give(&self, count: u32, memory: Option<&Memory>) -> Result<Vec<ChosenCore>, Error> {
        for _ in 0..CHOICES_MAX {
            let (_, cpus) = self.driver.machine().map_err(module_failed)?;
            let available = Cores::new(&Topology::read(self.root), &cpus);
            let room = &self.current.room;
            let chosen = available.choose_among(room, count);
            let free = || available.free_among(room);
            let chosen = chosen.ok_or_else(|| error::taken(self.name(), count, free()))?;
            let Err(error) = self.handle.node.grow(&numbers(&chosen), memory) else {
                return Ok(chosen);
            };
            match error.errno {
                // A core was taken, or went offline, meanwhile.
                Errno::EBUSY | Errno::ENODEV => {}
                Errno::EALREADY => return Err(error::not_running(self.name())),
                _ => return Err(module_failed(error)),
            }
        }
        Err(error::contended())
    }

    /// Switches the node's devices to its first `chunks` chunks of memory: to new ones before its
    /// kernel uses them, and off removed ones before the base takes them back.
    fn resize_devices(&self, chunks: usize) -> Result<(), StepError> {
        let resized = attachment::resize(self.handle.info.id, chunks);
        resized.map_err(|why| StepError::devices(self.name(), why))
    }

    /// Has the node's kernel use these, and what an interrupted update has left unused.
    fn online_all(
        &mut self,
        chosen: &[ChosenCore],
        chunks: &[abi::Chunk],
    ) -> Result<(), StepError> {
        let left = self.current.cpus.iter().map(|cpu| cpu.apic_id);
        let left = left.map(|id| Step::cpu(HotplugKind::CPU_ONLINE, id));
        let added = self.current.added().iter();
        let left = left.chain(added.map(|chunk| Step::memory(HotplugKind::MEMORY_ADD, *chunk)));
        let new = chosen.iter().map(|one| one.apic_id);
        let new = new.map(|id| Step::cpu(HotplugKind::CPU_ONLINE, id));
        let memory = chunks.iter();
        let new = new.chain(memory.map(|chunk| Step::memory(HotplugKind::MEMORY_ADD, *chunk)));
        let steps: Vec<_> = left.chain(new.map(|step| step.revertible())).collect();
        execute_all(&mut self.hotplug, &steps)
    }

    /// Has the node's kernel give up its last cores and chunks, and takes them back.
    fn shrink(&mut self, cpus: usize, chunks: usize) -> Result<(), Error> {
        let (own, added) = (self.current.cpus, self.current.added());
        let cpus = &own[own.len() - cpus..];
        let off = cpus
            .iter()
            .map(|cpu| Step::cpu(HotplugKind::CPU_OFFLINE, cpu.apic_id));
        let last = added[added.len() - chunks..].iter().rev();
        let remove = last.map(|chunk| Step::memory(HotplugKind::MEMORY_REMOVE, *chunk));
        let steps: Vec<_> = off.chain(remove).map(Step::revertible).collect();
        execute_all(&mut self.hotplug, &steps)?;
        if chunks > 0 {
            let left = self.current.chunks_count() - chunks;
            let resized = self.resize_devices(left);
            resized.or_else(|error| revert(&mut self.hotplug, &steps).and(Err(error)))?;
        }
        let numbers: Vec<u32> = cpus.iter().map(|cpu| cpu.cpu).collect();
        self.reclaim(&numbers, chunks)
    }

    fn reclaim(&self, cpus: &[u32], chunks: usize) -> Result<(), Error> {
        if cpus.is_empty() && chunks == 0 {
            return Ok(());
        }
        let taken = self.handle.node.shrink(cpus, chunks as u32);
        taken.map_err(|error| match error.errno {
            Errno::EALREADY => error::not_running(self.name()),
            _ => module_failed(error),
        })
    }
}

fn numbers(chosen: &[ChosenCore]) -> Vec<u32> {
    chosen.iter().map(|one| one.cpu).collect()
}

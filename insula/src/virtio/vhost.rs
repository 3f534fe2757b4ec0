//! What all devices have in common whose work vhost does: the kernel's, or a program by vhost-user.

use std::sync::{Arc, Mutex, PoisonError};

use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Address, GuestAddressSpace, GuestMemoryMmap, GuestMemoryRegion};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::device::{StartError, Virtqueue};
use super::memory::NodeMemory;
use crate::driver::CallError;

/// The transport's features that vhost may agree to with a node's driver: indirect descriptors,
/// event indices, and version 1.
pub(super) const TRANSPORT_FEATURES: u64 = 1 << 28 | 1 << 29 | 1 << 32;

/// The events of a node's channel. Each can be bound to eventfds.
pub trait Events: Send + Sync {
    /// From now on `kick` is signalled when the node signals `event`, and the node sees it signalled
    /// when `call` is. Until it is [unbound](Self::unbind).
    ///
    /// # Errors
    /// What the module answered.
    fn bind(&self, event: u32, kick: &EventFd, call: &EventFd) -> Result<(), CallError>;

    /// The event is nobody's any more.
    fn unbind(&self, event: u32);
}

/// A virtqueue's eventfds, bound to its event as long as this lives.
pub(super) struct Wire {
    events: Arc<dyn Events>,
    event: u32,
    kick: EventFd,
    call: EventFd,
}

impl Wire {
    fn new(events: &Arc<dyn Events>, event: u32) -> Result<Self, StartError> {
        let eventfd =
            || EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(failed("making an eventfd"));
        let (kick, call) = (eventfd()?, eventfd()?);
        let bound = events.bind(event, &kick, &call);
        bound.map_err(failed("binding an event of the node"))?;
        Ok(Self {
            events: Arc::clone(events),
            event,
            kick,
            call,
        })
    }

    /// Has both sides look at the virtqueue: what was signalled to one that is no more is lost.
    pub(super) fn signal_both(&self) {
        // A full counter is a signal, too.
        let _ = self.kick.write(1);
        let _ = self.call.write(1);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.events.unbind(self.event);
    }
}

/// Of a device's features those that the driver can have: its own ones in `own`, and the transport's.
pub(super) fn offered(vhost: &impl VhostBackend, own: u64) -> Result<u64, vhost::Error> {
    Ok(vhost.get_features()? & (own | TRANSPORT_FEATURES))
}

/// The memory that vhost of the kernel has of a node, in this process: it can be replaced.
#[derive(Clone, Debug)]
pub(super) struct KernelMemory(Arc<Mutex<NodeMemory>>);

impl KernelMemory {
    pub(super) fn new(memory: NodeMemory) -> Self {
        Self(Arc::new(Mutex::new(memory)))
    }

    fn now(&self) -> NodeMemory {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Answers what was there.
    fn replace(&self, memory: NodeMemory) -> NodeMemory {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut now, memory)
    }
}

impl GuestAddressSpace for KernelMemory {
    type M = GuestMemoryMmap<()>;
    type T = Arc<GuestMemoryMmap<()>>;

    fn memory(&self) -> Self::T {
        self.now().guest()
    }
}

/// Hands a node's memory and virtqueues of which nothing has been used yet over to vhost of the
/// kernel. The device itself is yet to be started; the wires are to be kept until it has been stopped.
pub(super) fn set_up(
    vhost: &impl VhostBackend,
    memory: &KernelMemory,
    events: &Arc<dyn Events>,
    features: u64,
    queues: &[Virtqueue],
) -> Result<Vec<Wire>, StartError> {
    let memory = memory.now();
    let wires = wire_up(&memory, events, queues)?;
    let wired: Vec<_> = queues.iter().zip(&wires).map(|pair| (pair, 0)).collect();
    hand_over(vhost, features, &wired, || set_table(vhost, &memory))?;
    Ok(wires)
}

/// Replaces the memory that vhost of the kernel works with, and by which it reaches the virtqueues:
/// the old one is no longer mapped when this returns.
///
/// # Errors
/// [`StartError`]; all is as it was.
pub(super) fn replace_memory(
    vhost: &impl VhostBackend,
    memory: &KernelMemory,
    new: NodeMemory,
    queues: &[Virtqueue],
) -> Result<(), StartError> {
    if !queues.iter().all(|queue| lies_in(&new, queue)) {
        let text = "a virtqueue lies in memory that is to go";
        return Err(StartError::BackEnd(text.into()));
    }
    let set = || {
        set_table(vhost, &memory.now())?;
        let mut all = queues.iter();
        all.try_for_each(|queue| vhost.set_vring_addr(queue.index as usize, &place(queue)))
            .map_err(failed("telling it where its virtqueues are"))
    };
    let old = memory.replace(new);
    set().inspect_err(|_| {
        drop(memory.replace(old));
        // It was accepted before.
        let _ = set();
    })
}

fn set_table(vhost: &impl VhostBackend, memory: &NodeMemory) -> Result<(), StartError> {
    let told = vhost.set_mem_table(&own_regions(memory));
    told.map(drop)
        .map_err(failed("telling it of the node's memory"))
}

/// Wires for virtqueues, each of which lies in the node's memory.
pub(super) fn wire_up(
    memory: &NodeMemory,
    events: &Arc<dyn Events>,
    queues: &[Virtqueue],
) -> Result<Vec<Wire>, StartError> {
    let wire = |queue: &Virtqueue| match lies_in(memory, queue) {
        true => Wire::new(events, queue.event),
        false => Err(StartError::Driver(format!(
            "its virtqueue {} does not lie in the node's memory",
            queue.index
        ))),
    };
    queues.iter().map(wire).collect()
}

/// Hands a node's memory over by `tell_of_memory`, and virtqueues with their wires; from each of them
/// the buffer with that number, counted since the queue has been laid out, is the first to be used.
pub(super) fn hand_over(
    vhost: &impl VhostBackend,
    features: u64,
    queues: &[((&Virtqueue, &Wire), u16)],
    tell_of_memory: impl FnOnce() -> Result<(), StartError>,
) -> Result<(), StartError> {
    vhost.set_owner().map_err(failed("owning it"))?;
    vhost
        .set_features(features & vhost.get_features().map_err(failed("asking it"))?)
        .map_err(failed("setting its features"))?;
    tell_of_memory()?;
    queues
        .iter()
        .try_for_each(|&((queue, wire), first)| hand_over_queue(vhost, queue, wire, first))
        .map_err(failed("giving it a virtqueue"))
}

fn hand_over_queue(
    vhost: &impl VhostBackend,
    queue: &Virtqueue,
    wire: &Wire,
    first: u16,
) -> Result<(), vhost::Error> {
    let index = queue.index as usize;
    vhost.set_vring_num(index, queue.size)?;
    vhost.set_vring_base(index, first)?;
    vhost.set_vring_addr(index, &place(queue))?;
    vhost.set_vring_call(index, &wire.call)?;
    vhost.set_vring_kick(index, &wire.kick)
}

fn place(queue: &Virtqueue) -> VringConfigData {
    VringConfigData {
        queue_max_size: queue.size,
        queue_size: queue.size,
        desc_table_addr: queue.descriptors,
        avail_ring_addr: queue.driver,
        used_ring_addr: queue.device,
        ..VringConfigData::default()
    }
}

/// Whether each part of the queue lies in one region: vhost reaches it from its first byte on.
/// Sizes and alignment: specification, 2.7 "Split Virtqueues".
pub(super) fn lies_in(memory: &NodeMemory, queue: &Virtqueue) -> bool {
    let entries = u64::from(queue.size);
    [
        (queue.descriptors, 16, 16 * entries),
        (queue.driver, 2, 6 + 2 * entries),
        (queue.device, 4, 6 + 8 * entries),
    ]
    .into_iter()
    .all(|(address, alignment, size): (u64, u64, u64)| {
        address.is_multiple_of(alignment) && memory.is_one_piece(address, size)
    })
}

/// The node's memory, for the kernel to reach in this process.
fn own_regions(memory: &NodeMemory) -> Vec<VhostUserMemoryRegionInfo> {
    let info = |region: &vm_memory::GuestRegionMmap| VhostUserMemoryRegionInfo {
        guest_phys_addr: region.start_addr().raw_value(),
        memory_size: region.len(),
        userspace_addr: region.as_ptr() as u64,
        ..VhostUserMemoryRegionInfo::default()
    };
    memory.regions().map(info).collect()
}

/// Makes a [`StartError`] of what failed.
pub(super) fn failed<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> StartError {
    move |error| StartError::BackEnd(format!("{doing}: {error}"))
}

//! Setup common to all vhost backends: the kernel's and vhost-user processes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use insula_driver::CallError;
use insula_node::attachment::UsedIndex;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Address, Bytes, GuestAddress, GuestAddressSpace, GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::device::{StartError, Virtqueue};
use super::memory::NodeMemory;

/// `VIRTIO_F_EVENT_IDX`: each side says from which buffer on it wants to be notified.
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// Transport features that are offered to a node's driver: INDIRECT_DESC, EVENT_IDX, VERSION_1.
pub(super) const TRANSPORT_FEATURES: u64 = 1 << 28 | EVENT_IDX | 1 << 32;

/// Binds events of a node's channel to eventfds.
pub(crate) trait EventfdBinder: Send + Sync {
    /// Binds `event`, until it is [unbound](Self::unbind): the node's signal becomes one of `kick`
    /// (ioeventfd), and a signal of `call` becomes one to the node (irqfd).
    ///
    /// # Errors
    /// The module's error.
    fn bind(&self, event: u32, kick: &EventFd, call: &EventFd) -> Result<(), CallError>;

    /// Removes the binding.
    fn unbind(&self, event: u32);
}

/// A virtqueue's eventfds, bound to its event until dropped.
pub(super) struct QueueNotifier {
    binder: Arc<dyn EventfdBinder>,
    event: u32,
    kick: EventFd,
    call: EventFd,
}

impl QueueNotifier {
    fn new(binder: &Arc<dyn EventfdBinder>, event: u32) -> Result<Self, StartError> {
        let eventfd =
            || EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map_err(failed("making an eventfd"));
        let (kick, call) = (eventfd()?, eventfd()?);
        let bound = binder.bind(event, &kick, &call);
        bound.map_err(failed("binding an event of the node"))?;
        Ok(Self {
            binder: Arc::clone(binder),
            event,
            kick,
            call,
        })
    }

    /// Notifies both sides: notifications to the previous backend may be lost.
    pub(super) fn signal_both(&self) {
        self.kick();
        self.notify_node();
    }

    /// Tells the node's driver that buffers were used.
    pub(super) fn notify_node(&self) {
        // A full counter is pending already.
        let _ = self.call.write(1);
    }

    /// Becomes readable when the node's driver has made buffers available. Does not block.
    pub(super) fn kicked(&self) -> &EventFd {
        &self.kick
    }

    /// Has the backend look for requests.
    pub(super) fn kick(&self) {
        // A full counter is pending already.
        let _ = self.kick.write(1);
    }
}

impl Drop for QueueNotifier {
    fn drop(&mut self) {
        self.binder.unbind(self.event);
    }
}

/// The backend's features that are among `own` or the transport's.
pub(super) fn offered(vhost: &impl VhostBackend, own: u64) -> Result<u64, vhost::Error> {
    Ok(vhost.get_features()? & (own | TRANSPORT_FEATURES))
}

/// The replaceable mapping of a node's memory through which vhost of the kernel accesses it.
#[derive(Clone, Debug)]
pub(super) struct KernelMemory(Arc<Mutex<NodeMemory>>);

impl KernelMemory {
    pub(super) fn new(memory: NodeMemory) -> Self {
        Self(Arc::new(Mutex::new(memory)))
    }

    fn current(&self) -> NodeMemory {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the old mapping.
    fn replace(&self, memory: NodeMemory) -> NodeMemory {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut now, memory)
    }
}

impl GuestAddressSpace for KernelMemory {
    type M = GuestMemoryMmap<()>;
    type T = Arc<GuestMemoryMmap<()>>;

    fn memory(&self) -> Self::T {
        self.current().guest()
    }
}

/// Sets up vhost of the kernel with a node's memory and virtqueues, which need not be fresh: those of a
/// copy of a node have been served before, in the original. The caller starts the device, and keeps the
/// notifiers until it is stopped.
pub(super) fn set_up_kernel(
    vhost: &impl VhostBackend,
    memory: &KernelMemory,
    binder: &Arc<dyn EventfdBinder>,
    features: u64,
    queues: &[Virtqueue],
) -> Result<Vec<QueueNotifier>, StartError> {
    let memory = memory.current();
    let notifiers = bind_notifiers(&memory, binder, queues)?;
    let prepared: Result<Vec<_>, _> = queues
        .iter()
        .zip(&notifiers)
        .map(|pair| Ok((pair, used_index(&memory, pair.0)?.index)))
        .collect();
    let prepared = prepared?;
    configure(vhost, features, &prepared, || set_table(vhost, &memory))?;
    Ok(notifiers)
}

/// Number of buffers of a virtqueue that were used. vhost of the kernel uses them in the order in which they
/// are available.
pub(super) fn used_index(memory: &NodeMemory, queue: &Virtqueue) -> Result<UsedIndex, StartError> {
    let (at, index) = index(memory, queue.device)?;
    Ok(UsedIndex {
        address: at.0,
        index,
    })
}

/// Number of buffers of a virtqueue that its driver has made available.
pub(super) fn available_index(memory: &NodeMemory, queue: &Virtqueue) -> Result<u16, StartError> {
    index(memory, queue.driver).map(|(_, index)| index)
}

/// The index of a virtqueue's ring, and where it is: behind the flags.
fn index(memory: &NodeMemory, ring: u64) -> Result<(GuestAddress, u16), StartError> {
    let at = GuestAddress(ring).checked_add(2);
    let at = at.ok_or_else(|| StartError::Driver("a virtqueue has no address".into()))?;
    let read = memory.guest().load(at, Ordering::Acquire);
    let index = read.map(u16::from_le);
    Ok((at, index.map_err(failed("reading a virtqueue"))?))
}

/// Replaces the memory of vhost of the kernel, and the addresses of the virtqueues in it. The old
/// mapping is gone when this returns.
///
/// # Errors
/// [`StartError`]; the old memory stays in use.
pub(super) fn replace_memory(
    vhost: &impl VhostBackend,
    memory: &KernelMemory,
    new: NodeMemory,
    queues: &[Virtqueue],
) -> Result<(), StartError> {
    check_kept(&new, queues)?;
    let set = || {
        set_table(vhost, &memory.current())?;
        let mut all = queues.iter();
        all.try_for_each(|queue| {
            vhost.set_vring_addr(queue.index as usize, &vring_addresses(queue))
        })
        .map_err(failed("setting the addresses of its virtqueues"))
    };
    let old = memory.replace(new);
    set().inspect_err(|_| {
        drop(memory.replace(old));
        // The old memory was accepted before.
        let _ = set();
    })
}

/// Checks that virtqueues lie in memory that is to replace another.
pub(super) fn check_kept(new: &NodeMemory, queues: &[Virtqueue]) -> Result<(), StartError> {
    if queues.iter().all(|queue| lies_in(new, queue)) {
        return Ok(());
    }
    let text = "a virtqueue lies in memory that is to be removed";
    Err(StartError::Backend(text.into()))
}

fn set_table(vhost: &impl VhostBackend, memory: &NodeMemory) -> Result<(), StartError> {
    let set = vhost.set_mem_table(&own_regions(memory));
    set.map(drop).map_err(failed("setting the node's memory"))
}

/// Creates notifiers for virtqueues, each of which must lie in the node's memory.
pub(super) fn bind_notifiers(
    memory: &NodeMemory,
    binder: &Arc<dyn EventfdBinder>,
    queues: &[Virtqueue],
) -> Result<Vec<QueueNotifier>, StartError> {
    let notifier = |queue: &Virtqueue| match lies_in(memory, queue) {
        true => QueueNotifier::new(binder, queue.event),
        false => Err(StartError::Driver(format!(
            "its virtqueue {} does not lie in the node's memory",
            queue.index
        ))),
    };
    queues.iter().map(notifier).collect()
}

/// Sets up a vhost backend: memory by `set_memory`, then virtqueues with their notifiers, each with
/// the available index to start from.
pub(super) fn configure(
    vhost: &impl VhostBackend,
    features: u64,
    queues: &[((&Virtqueue, &QueueNotifier), u16)],
    set_memory: impl FnOnce() -> Result<(), StartError>,
) -> Result<(), StartError> {
    vhost.set_owner().map_err(failed("becoming its owner"))?;
    vhost
        .set_features(
            features
                & vhost
                    .get_features()
                    .map_err(failed("reading its features"))?,
        )
        .map_err(failed("setting its features"))?;
    set_memory()?;
    queues
        .iter()
        .try_for_each(|&((queue, notifier), first)| configure_queue(vhost, queue, notifier, first))
        .map_err(failed("setting up a virtqueue"))
}

fn configure_queue(
    vhost: &impl VhostBackend,
    queue: &Virtqueue,
    notifier: &QueueNotifier,
    first: u16,
) -> Result<(), vhost::Error> {
    let index = queue.index as usize;
    vhost.set_vring_num(index, queue.size)?;
    vhost.set_vring_base(index, first)?;
    vhost.set_vring_addr(index, &vring_addresses(queue))?;
    vhost.set_vring_call(index, &notifier.call)?;
    vhost.set_vring_kick(index, &notifier.kick)
}

fn vring_addresses(queue: &Virtqueue) -> VringConfigData {
    VringConfigData {
        queue_max_size: queue.size,
        queue_size: queue.size,
        desc_table_addr: queue.descriptors,
        avail_ring_addr: queue.driver,
        used_ring_addr: queue.device,
        ..VringConfigData::default()
    }
}

/// Whether each part of the queue lies in one region, as vhost needs: it only gets the first
/// address. Sizes and alignment: specification, 2.7 "Split Virtqueues".
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

/// The node's memory as regions of this process.
fn own_regions(memory: &NodeMemory) -> Vec<VhostUserMemoryRegionInfo> {
    let info = |region: &vm_memory::GuestRegionMmap| VhostUserMemoryRegionInfo {
        guest_phys_addr: region.start_addr().raw_value(),
        memory_size: region.len(),
        userspace_addr: region.as_ptr() as u64,
        ..VhostUserMemoryRegionInfo::default()
    };
    memory.regions().map(info).collect()
}

/// Makes a [`StartError`] with the failed action.
pub(super) fn failed<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> StartError {
    move |error| StartError::Backend(format!("{doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use insula_abi::Chunk;

    use super::*;

    #[test]
    fn a_queue_goes_on_at_its_used_index() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x2000).unwrap();
        file.write_all_at(&0x1234_u16.to_le_bytes(), 0x1002)
            .unwrap();
        let chunk = Chunk {
            start: 0x8000,
            size: 0x2000,
        };
        let memory = NodeMemory::map(file.into(), &[chunk], 1).unwrap();
        let queue = |device| Virtqueue {
            index: 0,
            size: 4,
            descriptors: 0x8000,
            driver: 0x8100,
            device,
            event: 0,
        };
        let used = |device| used_index(&memory, &queue(device));
        assert_eq!(used(0x9000).unwrap().index, 0x1234);
        assert_eq!(used(0x9000).unwrap().address, 0x9002);
        assert_eq!(used(0x8000).unwrap().index, 0);
        for outside in [0x9ffe, 0x7000, u64::MAX] {
            assert!(used(outside).is_err(), "{outside:#x}");
        }
    }
}

//! Sockets between programs of the node and of the base (AF_VSOCK), by the kernel's vhost-vsock.

use std::sync::Arc;

use vhost::vhost_kern::vsock::Vsock as VhostVsock;
use vhost::vsock::VhostVsock as _;
use vm_memory::GuestMemoryMmap;

use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::memory::ServedNode;
use super::vhost::{
    Events, KernelMemory, TRANSPORT_FEATURES, Wire, failed, offered, replace_memory, set_up,
};

/// Specification, 5.10.
const DEVICE_ID: u32 = 19;
/// Received packets, packets to be sent, events; the last is never used by vhost-vsock.
const QUEUE_SIZES: &[u16] = &[128, 128, 16];
/// Queues that vhost works on.
const VHOST_QUEUES: usize = 2;
/// `VIRTIO_VSOCK_F_SEQPACKET`.
const SEQPACKET: u64 = 1 << 1;

/// A node's vsock device. The node's memory is mapped only while a driver of the node uses it: else
/// it could not go back as soon as the node is removed.
pub struct Vsock {
    node: Arc<ServedNode>,
    events: Arc<dyn Events>,
    /// The node's address.
    cid: u32,
    features: u64,
    working: Option<Working>,
}

type Device = VhostVsock<KernelMemory>;

struct Working {
    device: Device,
    memory: KernelMemory,
    queues: Vec<Virtqueue>,
    _wires: Vec<Wire>,
}

impl Vsock {
    /// The device of a node whose sockets have the address `cid`. If the base's vhost-vsock cannot be
    /// used, that is found when it is to be started.
    pub(super) fn new(node: Arc<ServedNode>, events: Arc<dyn Events>, cid: u32) -> Self {
        let without_memory = VhostVsock::new(Arc::new(GuestMemoryMmap::<()>::new()));
        let features = without_memory.and_then(|vhost| offered(&vhost, SEQPACKET));
        Self {
            node,
            events,
            cid,
            features: features.unwrap_or(TRANSPORT_FEATURES),
            working: None,
        }
    }

    fn begin(&self, features: u64, queues: &[Virtqueue]) -> Result<Working, StartError> {
        let memory = KernelMemory::new(self.node.map_joined()?);
        let device = Device::new(memory.clone()).map_err(failed("opening vhost-vsock"))?;
        let queues: Vec<_> = queues
            .iter()
            .filter(|queue| (queue.index as usize) < VHOST_QUEUES)
            .copied()
            .collect();
        if queues.len() != VHOST_QUEUES {
            return Err(StartError::Driver(
                "not all its virtqueues are laid out".into(),
            ));
        }
        let wires = set_up(&device, &memory, &self.events, features, &queues)?;
        device
            .set_guest_cid(self.cid.into())
            .map_err(failed("taking its address"))?;
        device.start().map_err(failed("starting vhost-vsock"))?;
        // What was signalled before it was there is lost.
        wires.iter().for_each(Wire::signal_both);
        Ok(Working {
            device,
            memory,
            queues,
            _wires: wires,
        })
    }
}

impl BackEnd for Vsock {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: self.features,
            queue_sizes: QUEUE_SIZES,
        }
    }

    fn name(&self) -> String {
        "sockets".into()
    }

    /// `struct virtio_vsock_config`: the node's address.
    fn config(&self) -> Vec<u8> {
        u64::from(self.cid).to_le_bytes().to_vec()
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        self.working = Some(self.begin(features, queues)?);
        Ok(())
    }

    fn change_memory(&mut self) -> Result<(), StartError> {
        let Some(working) = &self.working else {
            return Ok(());
        };
        let (device, queues) = (&working.device, &working.queues);
        replace_memory(device, &working.memory, self.node.map_joined()?, queues)
    }

    fn stop(&mut self) {
        if let Some(working) = self.working.take() {
            // Closing it stops it as well.
            let _ = working.device.stop();
        }
    }
}

//! Sockets between programs of the node and of the base (AF_VSOCK), by the kernel's vhost-vsock.

use std::sync::Arc;

use vhost::vhost_kern::vsock::Vsock as VhostVsock;
use vhost::vsock::VhostVsock as _;
use vm_memory::GuestMemoryMmap;

use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::memory::NodeMemory;
use super::vhost::{Events, Wire, failed, offered, own_regions, set_up};
use crate::driver::Node;

/// Specification, 5.10.
const DEVICE_ID: u32 = 19;
/// Received packets, packets to be sent, events; the last is never used by vhost-vsock.
const QUEUE_SIZES: &[u16] = &[128, 128, 16];
/// Queues that vhost works on.
const VHOST_QUEUES: usize = 2;
/// `VIRTIO_VSOCK_F_SEQPACKET`.
const SEQPACKET: u64 = 1 << 1;

/// Why a node cannot have sockets.
#[derive(Debug, thiserror::Error)]
#[error("the base's vhost-vsock cannot be used: {0} (is the module vhost_vsock loaded?)")]
pub struct VsockError(#[from] vhost::Error);

/// A node's vsock device. The node's memory is mapped only while a driver of the node uses it: else
/// it could not go back as soon as the node is removed.
pub struct Vsock {
    node: Arc<Node>,
    events: Arc<dyn Events>,
    /// The node's address.
    cid: u32,
    features: u64,
    working: Option<Working>,
}

type Device = VhostVsock<Arc<GuestMemoryMmap<()>>>;

struct Working {
    device: Device,
    _wires: Vec<Wire>,
}

impl Vsock {
    /// The device of a node whose sockets have the address `cid`.
    ///
    /// # Errors
    /// [`VsockError`].
    pub fn new(node: Arc<Node>, events: Arc<dyn Events>, cid: u32) -> Result<Self, VsockError> {
        let no_memory = Arc::new(GuestMemoryMmap::new());
        let features = offered(&Device::new(no_memory)?, SEQPACKET)?;
        Ok(Self {
            node,
            events,
            cid,
            features,
            working: None,
        })
    }

    fn begin(&self, features: u64, queues: &[Virtqueue]) -> Result<Working, StartError> {
        let memory = self.node.memory().map_err(failed("the node's memory"))?;
        let memory = NodeMemory::share(&memory).map_err(failed("the node's memory"))?;
        let device = Device::new(memory.guest()).map_err(failed("opening vhost-vsock"))?;
        let queues: Vec<_> = queues
            .iter()
            .filter(|queue| (queue.index as usize) < VHOST_QUEUES)
            .copied()
            .collect();
        if queues.len() != VHOST_QUEUES {
            return Err(StartError("not all its virtqueues are laid out".into()));
        }
        let wires = set_up(
            &device,
            &memory,
            &own_regions(&memory),
            &self.events,
            features,
            &queues,
        )?;
        device
            .set_guest_cid(self.cid.into())
            .map_err(failed("taking its address"))?;
        device.start().map_err(failed("starting vhost-vsock"))?;
        Ok(Working {
            device,
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

    /// `struct virtio_vsock_config`: the node's address.
    fn config(&self) -> Vec<u8> {
        u64::from(self.cid).to_le_bytes().to_vec()
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        self.working = Some(self.begin(features, queues)?);
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(working) = self.working.take() {
            // Closing it stops it as well; this only tells of a failure.
            if let Err(error) = working.device.stop() {
                eprintln!("insula: stopping vhost-vsock: {error}");
            }
        }
    }
}

//! Sockets between node and base (AF_VSOCK), served by the kernel's vhost-vsock.

use std::sync::Arc;
use std::thread;

use vhost::vhost_kern::vsock::Vsock as VhostVsock;
use vhost::vsock::VhostVsock as _;
use vm_memory::GuestMemoryMmap;

use super::device::{Backend, Identity, StartError, Virtqueue};
use super::memory::DeviceNode;
use super::vhost::{
    EventfdBinder, KernelMemory, QueueNotifier, TRANSPORT_FEATURES, failed, offered,
    replace_memory, set_up_kernel,
};

/// Specification, 5.10.
const DEVICE_ID: u32 = 19;
/// Receive queue, transmit queue, event queue; vhost-vsock does not use the last.
const QUEUE_SIZES: &[u16] = &[128, 128, 16];
/// Number of queues served by vhost.
const VHOST_QUEUES: usize = 2;
/// `VIRTIO_VSOCK_F_SEQPACKET`.
const SEQPACKET: u64 = 1 << 1;

/// A node's vsock device. The node's memory is only mapped while a driver uses the device;
/// otherwise it could not be freed when the node is removed.
pub(crate) struct Vsock {
    node: Arc<DeviceNode>,
    binder: Arc<dyn EventfdBinder>,
    /// The node's address.
    cid: u32,
    features: u64,
    running: Option<Running>,
}

type Device = VhostVsock<KernelMemory>;

struct Running {
    device: Device,
    memory: KernelMemory,
    queues: Vec<Virtqueue>,
    _notifiers: Vec<QueueNotifier>,
}

impl Vsock {
    /// The device of a node with the address `cid`. A missing vhost-vsock on the base is reported
    /// at start.
    pub(super) fn new(node: Arc<DeviceNode>, binder: Arc<dyn EventfdBinder>, cid: u32) -> Self {
        let without_memory = VhostVsock::new(Arc::new(GuestMemoryMmap::<()>::new()));
        let features = without_memory.and_then(|vhost| {
            let features = offered(&vhost, SEQPACKET);
            // The kernel waits for a grace period when it is closed, 20 ms or more.
            drop(thread::Builder::new().spawn(|| drop(vhost)));
            features
        });
        Self {
            node,
            binder,
            cid,
            features: features.unwrap_or(TRANSPORT_FEATURES),
            running: None,
        }
    }

    fn start_vhost(&self, features: u64, queues: &[Virtqueue]) -> Result<Running, StartError> {
        let memory = KernelMemory::new(self.node.map_joined()?);
        let device = Device::new(memory.clone()).map_err(failed("opening vhost-vsock"))?;
        let queues: Vec<_> = queues
            .iter()
            .filter(|queue| (queue.index as usize) < VHOST_QUEUES)
            .copied()
            .collect();
        if queues.len() != VHOST_QUEUES {
            return Err(StartError::Driver(
                "not all its virtqueues are set up".into(),
            ));
        }
        let notifiers = set_up_kernel(&device, &memory, &self.binder, features, &queues)?;
        device
            .set_guest_cid(self.cid.into())
            .map_err(failed("setting its address"))?;
        device.start().map_err(failed("starting vhost-vsock"))?;
        // Notifications before the start were lost.
        notifiers.iter().for_each(QueueNotifier::signal_both);
        Ok(Running {
            device,
            memory,
            queues,
            _notifiers: notifiers,
        })
    }
}

impl Backend for Vsock {
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
        self.running = Some(self.start_vhost(features, queues)?);
        Ok(())
    }

    fn change_memory(&mut self) -> Result<(), StartError> {
        let Some(running) = &self.running else {
            return Ok(());
        };
        let (device, queues) = (&running.device, &running.queues);
        replace_memory(device, &running.memory, self.node.map_joined()?, queues)
    }

    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            // Closing the device stops it as well.
            let _ = running.device.stop();
        }
    }
}

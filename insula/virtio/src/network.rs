//! A node's network card, served by the kernel's vhost-net and a tap device of the base.

use std::net::Ipv4Addr;
use std::sync::Arc;

use insula_driver::{Tap, set_busy_poll};
use insula_node::attachment::{Link, Networking};
use nix::libc::{TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6};
use vhost::VhostBackend;
use vhost::net::VhostNet;
use vhost::vhost_kern::net::Net;

use super::bridge;
use super::device::{Backend, Identity, StartError, Virtqueue};
use super::memory::DeviceNode;
use super::monitor::DeviceEvents;
use super::name_server::{NameServer, Names};
use super::nat::Nat;
use super::vhost::{
    EventfdBinder, KernelMemory, QueueNotifier, TRANSPORT_FEATURES, failed, replace_memory,
    set_up_kernel,
};

/// Specification, 5.1.
const DEVICE_ID: u32 = 1;
/// Receive queue, transmit queue.
const QUEUE_SIZES: &[u16] = &[256, 256];

/// Features of the tap device: checksum and segmentation offload of either side.
const CSUM: u64 = 1;
const GUEST_CSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const TAP_FEATURES: u64 = CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | HOST_TSO4 | HOST_TSO6;
/// `VIRTIO_NET_F_MAC`.
const MAC: u64 = 1 << 5;
/// `VIRTIO_NET_F_MRG_RXBUF`, a feature of vhost: a packet in several buffers.
const MRG_RXBUF: u64 = 1 << 15;

/// What a node has beside its card.
pub(super) struct Services {
    pub(super) device_events: Arc<dyn DeviceEvents>,
    pub(super) nat: Arc<Nat>,
    pub(super) names: Names,
}

/// A node's network card, on the bridge of its network.
pub(crate) struct Network {
    node: Arc<DeviceNode>,
    binder: Arc<dyn EventfdBinder>,
    services: Services,
    /// Id of the node.
    id: u32,
    address: Ipv4Addr,
    link: Link,
    /// How long vhost-net looks for packets before it waits, in microseconds.
    poll_us: u32,
    running: Option<Running>,
}

type Device = Net<KernelMemory>;

struct Running {
    device: Device,
    memory: KernelMemory,
    queues: Vec<Virtqueue>,
    /// Closed only after vhost has released it.
    tap: Option<Tap>,
    /// Ended before the bridge is removed.
    name_server: Option<NameServer>,
    bridge: String,
    notifiers: Vec<QueueNotifier>,
}

impl Network {
    /// The card of a node.
    pub(super) fn new(
        node: Arc<DeviceNode>,
        binder: Arc<dyn EventfdBinder>,
        services: Services,
        id: u32,
        networking: &Networking,
    ) -> Self {
        Self {
            node,
            binder,
            services,
            id,
            address: networking.address(id),
            link: networking.link(id),
            poll_us: networking.poll_us,
            running: None,
        }
    }

    fn start_vhost(&self, features: u64, queues: &[Virtqueue]) -> Result<Running, StartError> {
        if queues.len() != QUEUE_SIZES.len() {
            return Err(StartError::Driver(
                "not all its virtqueues are set up".into(),
            ));
        }
        let memory = KernelMemory::new(self.node.map_joined()?);
        let device = Device::new(memory.clone()).map_err(failed("opening vhost-net"))?;
        let known = device.get_features().map_err(failed("asking vhost-net"))?;
        if features & (MRG_RXBUF | TRANSPORT_FEATURES) & !known != 0 {
            return Err(StartError::Backend("vhost-net lacks a feature".into()));
        }
        let name = interface(self.id);
        let tap = Tap::create(&name).map_err(failed("making a network interface"))?;
        tap.set_offload(offload(features))
            .map_err(failed("making a network interface"))?;
        bridge::join(&self.link, &name).map_err(failed("joining the nodes' network"))?;
        self.services.nat.open();
        let name_server = NameServer::start(&self.link, Arc::clone(&self.services.names));
        let name_server = name_server.inspect_err(|error| {
            let text = format!("{}: it serves no names: {error}", self.name());
            self.services.device_events.report(&text);
        });
        let notifiers = set_up_kernel(&device, &memory, &self.binder, features, queues)?;
        let running = Running {
            device,
            memory,
            queues: queues.to_vec(),
            tap: Some(tap),
            name_server: name_server.ok(),
            bridge: self.link.bridge.clone(),
            notifiers,
        };
        for queue in 0..QUEUE_SIZES.len() {
            if self.poll_us > 0 {
                set_busy_poll(&running.device, queue as u32, self.poll_us)
                    .map_err(failed("having vhost-net look for packets"))?;
            }
            let tap = running.tap.as_ref().map(Tap::file);
            running
                .device
                .set_backend(queue, tap)
                .map_err(failed("starting vhost-net"))?;
        }
        // Notifications before the backend was set were lost.
        running
            .notifiers
            .iter()
            .for_each(QueueNotifier::signal_both);
        Ok(running)
    }
}

/// The base's interface to the node with this id.
pub(super) fn interface(id: u32) -> String {
    format!("insula-{id}")
}

/// The driver's offload features as flags of a tap device.
fn offload(features: u64) -> u32 {
    [
        (GUEST_CSUM, TUN_F_CSUM),
        (GUEST_TSO4, TUN_F_TSO4),
        (GUEST_TSO6, TUN_F_TSO6),
    ]
    .into_iter()
    .filter(|(feature, _)| features & feature != 0)
    .fold(0, |bits, (_, bit)| bits | bit)
}

impl Drop for Running {
    fn drop(&mut self) {
        for queue in 0..QUEUE_SIZES.len() {
            // Closing the device stops it as well.
            let _ = self.device.set_backend(queue, None);
        }
        self.tap = None;
        self.name_server = None;
        bridge::leave(&self.bridge);
    }
}

impl Backend for Network {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: TAP_FEATURES | MAC | MRG_RXBUF | TRANSPORT_FEATURES,
            queue_sizes: QUEUE_SIZES,
        }
    }

    fn name(&self) -> String {
        "network".into()
    }

    /// `struct virtio_net_config`: with these features, only the address.
    fn config(&self) -> Vec<u8> {
        insula_agent::network::card(self.address).to_vec()
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
        self.running = None;
    }
}

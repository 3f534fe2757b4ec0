//! A node's network card, by the kernel's vhost-net and a tap of the base.

use std::net::Ipv4Addr;
use std::sync::Arc;

use nix::libc::{TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6};
use serde::{Deserialize, Serialize};
use vhost::VhostBackend;
use vhost::net::VhostNet;
use vhost::vhost_kern::net::Net;
use vm_memory::GuestMemoryMmap;

use super::bridge;
use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::memory::NodeMemory;
use super::publish::Publish;
use super::vhost::{Events, TRANSPORT_FEATURES, Wire, failed, own_regions, set_up};
use crate::driver::{Node, Tap};

/// Specification, 5.1.
const DEVICE_ID: u32 = 1;
/// Received packets, packets to be sent.
const QUEUE_SIZES: &[u16] = &[256, 256];

/// Features by the tap: what checksums and segments each side leaves to the other.
const CSUM: u64 = 1;
const GUEST_CSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const TAP_FEATURES: u64 = CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | HOST_TSO4 | HOST_TSO6;
/// The card tells its address.
const MAC: u64 = 1 << 5;
/// Feature by vhost: a packet in several buffers.
const MRG_RXBUF: u64 = 1 << 15;

/// How a node is on the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networking {
    /// Ports of the base that lead to it.
    pub publish: Vec<Publish>,
    /// The address that it asks for, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
}

impl Networking {
    /// The address of the node with this id.
    #[must_use]
    pub fn address(&self, id: u32) -> Ipv4Addr {
        self.address.unwrap_or_else(|| bridge::address(id))
    }
}

/// A node's network card, on the bridge of all nodes.
pub struct Network {
    node: Arc<Node>,
    events: Arc<dyn Events>,
    /// Which node it is.
    id: u32,
    address: Ipv4Addr,
    working: Option<Working>,
}

type Device = Net<Arc<GuestMemoryMmap<()>>>;

struct Working {
    device: Device,
    /// Gone after vhost has let go of it.
    tap: Option<Tap>,
    _wires: Vec<Wire>,
}

impl Network {
    /// The card of the node with this id, whose address on the network is to be this one.
    pub fn new(node: Arc<Node>, events: Arc<dyn Events>, id: u32, address: Ipv4Addr) -> Self {
        Self {
            node,
            events,
            id,
            address,
            working: None,
        }
    }

    fn begin(&self, features: u64, queues: &[Virtqueue]) -> Result<Working, StartError> {
        if queues.len() != QUEUE_SIZES.len() {
            return Err(StartError("not all its virtqueues are laid out".into()));
        }
        let memory = self.node.memory().map_err(failed("the node's memory"))?;
        let memory = NodeMemory::share(&memory).map_err(failed("the node's memory"))?;
        let device = Device::new(memory.guest()).map_err(failed("opening vhost-net"))?;
        let known = device.get_features().map_err(failed("asking vhost-net"))?;
        if features & (MRG_RXBUF | TRANSPORT_FEATURES) & !known != 0 {
            return Err(StartError("vhost-net lacks a feature".into()));
        }
        let name = format!("insula-{}", self.id);
        let tap = Tap::create(&name).map_err(failed("making a network interface"))?;
        tap.set_offload(offload(features))
            .map_err(failed("making a network interface"))?;
        bridge::join(&name).map_err(failed("joining the nodes' network"))?;
        let regions = own_regions(&memory);
        let wires = set_up(&device, &memory, &regions, &self.events, features, queues)?;
        let working = Working {
            device,
            tap: Some(tap),
            _wires: wires,
        };
        for queue in 0..QUEUE_SIZES.len() {
            let tap = working.tap.as_ref().map(Tap::file);
            working
                .device
                .set_backend(queue, tap)
                .map_err(failed("starting vhost-net"))?;
        }
        Ok(working)
    }
}

/// What the node takes, as a tap has it.
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

impl Drop for Working {
    fn drop(&mut self) {
        for queue in 0..QUEUE_SIZES.len() {
            if let Err(error) = self.device.set_backend(queue, None) {
                eprintln!("insula: stopping vhost-net: {error}");
            }
        }
        self.tap = None;
        bridge::leave();
    }
}

impl BackEnd for Network {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: TAP_FEATURES | MAC | MRG_RXBUF | TRANSPORT_FEATURES,
            queue_sizes: QUEUE_SIZES,
        }
    }

    /// `struct virtio_net_config`, as far as the features say that there is more than the address.
    fn config(&self) -> Vec<u8> {
        insula_agent::network::card(self.address).to_vec()
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        self.working = Some(self.begin(features, queues)?);
        Ok(())
    }

    fn stop(&mut self) {
        self.working = None;
    }
}

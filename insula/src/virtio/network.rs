//! A node's network card, by the kernel's vhost-net and a tap of the base.

use std::net::Ipv4Addr;
use std::sync::Arc;

use nix::libc::{TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6};
use serde::{Deserialize, Serialize};
use vhost::VhostBackend;
use vhost::net::VhostNet;
use vhost::vhost_kern::net::Net;

use super::bridge;
use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::memory::ServedNode;
use super::publish::Publish;
use super::vhost::{
    Events, KernelMemory, TRANSPORT_FEATURES, Wire, failed, replace_memory, set_up,
};
use crate::driver::Tap;

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
    node: Arc<ServedNode>,
    events: Arc<dyn Events>,
    /// Which node it is.
    id: u32,
    address: Ipv4Addr,
    working: Option<Working>,
}

type Device = Net<KernelMemory>;

struct Working {
    device: Device,
    memory: KernelMemory,
    queues: Vec<Virtqueue>,
    /// Gone after vhost has let go of it.
    tap: Option<Tap>,
    wires: Vec<Wire>,
}

impl Network {
    /// The card of the node with this id, whose address on the network is to be this one.
    pub(super) fn new(
        node: Arc<ServedNode>,
        events: Arc<dyn Events>,
        id: u32,
        address: Ipv4Addr,
    ) -> Self {
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
            return Err(StartError::Driver(
                "not all its virtqueues are laid out".into(),
            ));
        }
        let memory = KernelMemory::new(self.node.map_joined()?);
        let device = Device::new(memory.clone()).map_err(failed("opening vhost-net"))?;
        let known = device.get_features().map_err(failed("asking vhost-net"))?;
        if features & (MRG_RXBUF | TRANSPORT_FEATURES) & !known != 0 {
            return Err(StartError::BackEnd("vhost-net lacks a feature".into()));
        }
        let name = format!("insula-{}", self.id);
        let tap = Tap::create(&name).map_err(failed("making a network interface"))?;
        tap.set_offload(offload(features))
            .map_err(failed("making a network interface"))?;
        bridge::join(&name).map_err(failed("joining the nodes' network"))?;
        let wires = set_up(&device, &memory, &self.events, features, queues)?;
        let working = Working {
            device,
            memory,
            queues: queues.to_vec(),
            tap: Some(tap),
            wires,
        };
        for queue in 0..QUEUE_SIZES.len() {
            let tap = working.tap.as_ref().map(Tap::file);
            working
                .device
                .set_backend(queue, tap)
                .map_err(failed("starting vhost-net"))?;
        }
        // What was signalled before it was there is lost.
        working.wires.iter().for_each(Wire::signal_both);
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
            // Closing it stops it as well.
            let _ = self.device.set_backend(queue, None);
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

    fn name(&self) -> String {
        "network".into()
    }

    /// `struct virtio_net_config`, as far as the features say that there is more than the address.
    fn config(&self) -> Vec<u8> {
        insula_agent::network::card(self.address).to_vec()
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
        self.working = None;
    }
}

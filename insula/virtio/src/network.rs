//! A node's network card, served by the kernel's vhost-net and a tap device of the base.

mod control;
mod pair;

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use insula_abi::virtio::{EVENTS_MAX, QUEUES_MAX};
use insula_driver::Tap;
use insula_node::attachment::{Link, Networking};
use nix::libc::{TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6};

use super::bridge;
use super::device::{Backend, Identity, StartError, Virtqueue};
use super::memory::{DeviceNode, NodeMemory};
use super::monitor::DeviceEvents;
use super::name_server::{NameServer, Names};
use super::nat::Nat;
use super::vhost::{EventfdBinder, TRANSPORT_FEATURES, available_index, failed, used_index};
use control::Control;
use pair::{MRG_RXBUF, Pair};

/// Specification, 5.1.
const DEVICE_ID: u32 = 1;
/// Most pairs of a receive and a transmit queue: as many as a device has, less the control queue.
const PAIRS_MAX: usize = (QUEUES_MAX as usize - 1) / 2;
/// Sizes of the queues: first the pairs', then the control queue's.
const QUEUE_SIZES: [u16; 2 * PAIRS_MAX + 1] = [256; 2 * PAIRS_MAX + 1];

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
/// `VIRTIO_NET_F_CTRL_VQ` and `VIRTIO_NET_F_MQ`: several pairs, and a control queue by which the driver says how many it
/// uses; one until then.
const CTRL_VQ: u64 = 1 << 17;
const MQ: u64 = 1 << 22;

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
    /// Most pairs of queues that its driver can use.
    pairs: usize,
    running: Option<Running>,
}

/// Ended from the top: nothing moves packets once the tap is closed.
struct Running {
    pairs: Vec<Pair>,
    control: Option<Control>,
    tap: Option<Arc<Tap>>,
    /// Ended before the bridge is removed.
    name_server: Option<NameServer>,
    bridge: String,
}

impl Network {
    /// The card of a node with this many cores, whose other devices have that many queues.
    pub(super) fn new(
        node: Arc<DeviceNode>,
        binder: Arc<dyn EventfdBinder>,
        services: Services,
        id: u32,
        networking: &Networking,
        (cores, other_queues): (usize, usize),
    ) -> Self {
        Self {
            node,
            binder,
            services,
            id,
            address: networking.address(id),
            link: networking.link(id),
            poll_us: networking.poll_us,
            pairs: pairs_of(cores, other_queues),
            running: None,
        }
    }

    fn start_vhost(&self, features: u64, queues: &[Virtqueue]) -> Result<Running, StartError> {
        let (of_pairs, control) = self.split(features, queues)?;
        let memory = self.node.map_joined()?;
        let count = of_pairs.len() / 2;
        let in_use = pairs_in_use(&memory, of_pairs, control)?;
        let name = interface(self.id);
        let tap = Tap::create(&name, count).map_err(failed("making a network interface"))?;
        let tap = Arc::new(tap);
        let mut running = Running {
            pairs: Vec::new(),
            control: None,
            tap: Some(Arc::clone(&tap)),
            name_server: None,
            bridge: self.link.bridge.clone(),
        };
        tap.set_offload(offload(features))
            .map_err(failed("making a network interface"))?;
        bridge::join(&self.link, &name).map_err(failed("joining the nodes' network"))?;
        self.services.nat.open();
        running.name_server = self.serve_names();
        running.pairs = self.start_pairs(&memory, features, of_pairs, &tap)?;
        let mut in_use_now = count;
        let mut set_pairs = move |pairs| use_pairs(&tap, &mut in_use_now, pairs);
        set_pairs(in_use).map_err(failed("choosing queues of the network interface"))?;
        running.control = control
            .map(|queue| Control::start(memory, &self.binder, features, queue, Box::new(set_pairs)))
            .transpose()?;
        Ok(running)
    }

    fn start_pairs(
        &self,
        memory: &NodeMemory,
        features: u64,
        of_pairs: &[Virtqueue],
        tap: &Tap,
    ) -> Result<Vec<Pair>, StartError> {
        let pairs = of_pairs.chunks(2).zip(tap.queues());
        let started = pairs.map(|(queues, file)| {
            let pair = Pair::set_up(memory.clone(), &self.binder, features, queues)?;
            pair.start(file, self.poll_us).map(|()| pair)
        });
        started.collect()
    }

    /// The queues of pairs that the driver has set up, and the control queue.
    fn split<'a>(
        &self,
        features: u64,
        queues: &'a [Virtqueue],
    ) -> Result<(&'a [Virtqueue], Option<&'a Virtqueue>), StartError> {
        let pairs = if features & MQ == 0 { 1 } else { self.pairs };
        let has_control = features & CTRL_VQ != 0;
        let wanted = 2 * pairs + usize::from(has_control);
        let is_next = |(index, queue): (u32, &Virtqueue)| queue.index == index;
        if queues.len() != wanted || !(0..).zip(queues).all(is_next) {
            let text = "not all its virtqueues are set up";
            return Err(StartError::Driver(text.into()));
        }
        if features & MQ != 0 && !has_control {
            let text = "it has several queues and no control queue";
            return Err(StartError::Driver(text.into()));
        }
        let (of_pairs, control) = queues.split_at(2 * pairs);
        Ok((of_pairs, control.first()))
    }

    fn serve_names(&self) -> Option<NameServer> {
        let name_server = NameServer::start(&self.link, Arc::clone(&self.services.names));
        let told = name_server.inspect_err(|error| {
            let text = format!("{}: it serves no names: {error}", self.name());
            self.services.device_events.report(&text);
        });
        told.ok()
    }
}

/// How many pairs of queues a node of so many cores has: one for each, if the channel has events for them beside those
/// of so many other queues.
fn pairs_of(cores: usize, other_queues: usize) -> usize {
    let events = (EVENTS_MAX as usize).saturating_sub(other_queues + 1);
    cores.min(PAIRS_MAX).min(events / 2).max(1)
}

/// How many pairs the driver uses. That of a copy of a node has said so to the original's base: it has given the receive
/// queues of those pairs buffers.
fn pairs_in_use(
    memory: &NodeMemory,
    of_pairs: &[Virtqueue],
    control: Option<&Virtqueue>,
) -> Result<usize, StartError> {
    let is_new = match control {
        Some(queue) => used_index(memory, queue)?.index == 0,
        None => true,
    };
    if is_new {
        return Ok(1);
    }
    let mut count = 0;
    for receive in of_pairs.iter().step_by(2) {
        let used = used_index(memory, receive)?.index;
        if (available_index(memory, receive)?, used) != (0, 0) {
            count += 1;
        }
    }
    Ok(count.max(1))
}

/// Has the first `wanted` queues of the tap take packets, of which `in_use` do now.
fn use_pairs(tap: &Tap, in_use: &mut usize, wanted: usize) -> io::Result<()> {
    if !(1..=tap.queues().len()).contains(&wanted) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    while *in_use < wanted {
        tap.set_attached(*in_use, true)?;
        *in_use += 1;
    }
    while *in_use > wanted {
        tap.set_attached(*in_use - 1, false)?;
        *in_use -= 1;
    }
    Ok(())
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
        self.control = None;
        self.pairs.clear();
        self.tap = None;
        self.name_server = None;
        bridge::leave(&self.bridge);
    }
}

impl Backend for Network {
    fn identity(&self) -> Identity {
        let (several, queues) = match self.pairs {
            1 => (0, 2),
            pairs => (CTRL_VQ | MQ, 2 * pairs + 1),
        };
        Identity {
            device_id: DEVICE_ID,
            features: TAP_FEATURES | MAC | MRG_RXBUF | TRANSPORT_FEATURES | several,
            queue_sizes: const { &QUEUE_SIZES }.split_at(queues).0,
        }
    }

    fn name(&self) -> String {
        "network".into()
    }

    /// `struct virtio_net_config`: the address, a status without meaning, and the most pairs.
    fn config(&self) -> Vec<u8> {
        let card = insula_agent::network::card(self.address);
        let pairs = (self.pairs as u16).to_le_bytes();
        [&card[..], &[0, 0], &pairs].concat()
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        self.running = Some(self.start_vhost(features, queues)?);
        Ok(())
    }

    fn change_memory(&mut self) -> Result<(), StartError> {
        let Some(running) = &self.running else {
            return Ok(());
        };
        let memory = self.node.map_joined()?;
        if let Some(control) = &running.control {
            control.change_memory(memory.clone())?;
        }
        // If one fails, the caller has all of them, and the others, use the old memory again.
        let mut pairs = running.pairs.iter();
        pairs.try_for_each(|pair| pair.change_memory(memory.clone()))
    }

    fn stop(&mut self) {
        self.running = None;
    }
}

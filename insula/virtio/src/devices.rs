//! Which devices a node has, and their creation for a session with its drivers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use insula_agent::options;
use insula_base::error::Source;
use insula_node::attachment::{DiskFile, Networking, Volume, cid};

use super::bus::Bus;
use super::checkpoint::Checkpoints;
use super::device::Backend;
use super::disk::Disk;
use super::files::{Files, Share};
use super::memory::DeviceNode;
use super::monitor::{DeviceContext, DeviceEvents};
use super::name_server::Names;
use super::nat::Nat;
use super::network::{Network, Services};
use super::slot::BackendSlot;
use super::vhost::EventfdBinder;
use super::vsock::Vsock;

/// Timeout until the sizes of all disks together are known. Drivers time out after ten seconds.
const DISKS_TIMEOUT: Duration = Duration::from_secs(7);

/// The devices of a node.
#[derive(Clone)]
pub struct Devices {
    /// The node's id, which determines its addresses.
    pub id: u32,
    /// Number of chunks of memory that it was started with.
    pub chunks_started: usize,
    /// The folder of the base that is its root.
    pub root: Option<PathBuf>,
    /// Its disks, in order.
    pub disks: Vec<DiskFile>,
    /// Folders of the base that it has beside its root.
    pub volumes: Vec<Volume>,
    /// Its network, if any.
    pub network: Option<Networking>,
    /// Addresses of the nodes and containers on its network, for names that it asks for.
    pub names: Names,
    /// Whether it is a copy.
    pub is_copy: bool,
}

/// Creates the devices of a node. Every node has vsock.
pub(super) fn bus(
    node: &Arc<DeviceNode>,
    binder: Arc<dyn EventfdBinder>,
    devices: &Devices,
    checkpoints: &Checkpoints,
    device_events: &Arc<dyn DeviceEvents>,
    nat: &Arc<Nat>,
) -> Result<Bus, Source> {
    let vsock = Vsock::new(Arc::clone(node), Arc::clone(&binder), cid(devices.id));
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(vsock)];
    let slot = |device: &str, name: String| BackendSlot {
        node: Arc::clone(node),
        binder: Arc::clone(&binder) as _,
        context: DeviceContext {
            name,
            checkpoint: checkpoints.device(device),
            is_copy: devices.is_copy,
            device_events: Arc::clone(device_events),
        },
        monitor: None,
    };
    for folder in folders(devices) {
        let slot = slot(&folder.tag, Files::name(&folder.path));
        backends.push(Box::new(Files::new(slot, folder)));
    }
    for disk in disks(&devices.disks, slot) {
        backends.push(Box::new(disk));
    }
    if let Some(network) = &devices.network {
        let services = Services {
            device_events: Arc::clone(device_events),
            nat: Arc::clone(nat),
            names: Arc::clone(&devices.names),
        };
        let (_, cpus) = node.node().info()?;
        let queues = backends.iter().map(|one| one.identity().queue_sizes.len());
        let counts = (cpus.len(), queues.sum());
        let card = Network::new(
            Arc::clone(node),
            binder,
            services,
            devices.id,
            network,
            counts,
        );
        backends.push(Box::new(card));
    }
    Ok(Bus::new(backends)?)
}

/// The folders of the base that the node has: its root, if that is one, and its volumes.
fn folders(devices: &Devices) -> impl Iterator<Item = Share> {
    let root = devices.root.iter().map(|path| Share {
        tag: options::ROOT_TAG.to_owned(),
        path: path.clone(),
        read_only: false,
    });
    let volumes = devices.volumes.iter().enumerate();
    root.chain(volumes.map(|(number, volume)| Share {
        tag: options::volume_tag(number),
        path: volume.folder.clone(),
        read_only: volume.read_only,
    }))
}

/// Creates all disks, starting their daemons at the same time. A hanging one only delays when the
/// sizes of the others are known.
fn disks(files: &[DiskFile], slot: impl Fn(&str, String) -> BackendSlot) -> Vec<Disk> {
    let began = Instant::now();
    let make = |(number, file): (usize, &DiskFile)| {
        let slot = slot(&format!("disk-{number}"), Disk::name(file));
        Disk::new(slot, file.clone())
    };
    let mut disks: Vec<_> = files.iter().enumerate().map(make).collect();
    let count = disks.len() as u32;
    for (queried, disk) in (0..).zip(&mut disks) {
        let left = DISKS_TIMEOUT.saturating_sub(began.elapsed());
        disk.query(left / (count - queried).min(2));
    }
    disks
}

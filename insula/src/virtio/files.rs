//! Files of the base in a node (virtiofs), by virtiofsd.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use vhost::vhost_user::Frontend;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vm_memory::{Address, GuestMemoryRegion, GuestRegionMmap};

use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::memory::NodeMemory;
use super::vhost::{Events, TRANSPORT_FEATURES, Wire, failed, set_up};
use super::virtiofsd::VirtioFsd;
use crate::driver::Node;

/// Specification, 5.11.
const DEVICE_ID: u32 = 26;
/// Urgent requests, others: large enough for the largest request of the kernel.
const QUEUE_SIZES: &[u16] = &[128, 512];
/// Bytes of the configuration's tag.
const TAG_SIZE: usize = 36;

/// A folder of the base as a file system of a node.
pub struct Files {
    node: Arc<Node>,
    events: Arc<dyn Events>,
    tag: &'static str,
    folder: PathBuf,
    working: Option<Working>,
}

/// The process ends before the events are nobody's any more.
struct Working {
    _process: VirtioFsd,
    _connection: Frontend,
    _wires: Vec<Wire>,
}

impl Files {
    /// The device by which a node has `folder`, under a name of at most 36 bytes.
    pub fn new(
        node: Arc<Node>,
        events: Arc<dyn Events>,
        tag: &'static str,
        folder: PathBuf,
    ) -> Self {
        Self {
            node,
            events,
            tag,
            folder,
            working: None,
        }
    }

    fn begin(&self, features: u64, queues: &[Virtqueue]) -> Result<Working, StartError> {
        if queues.len() != QUEUE_SIZES.len() {
            return Err(StartError("not all its virtqueues are laid out".into()));
        }
        let memory = self.node.memory().map_err(failed("the node's memory"))?;
        let memory = NodeMemory::share(&memory).map_err(failed("the node's memory"))?;
        let started = VirtioFsd::start(&self.folder);
        let (process, stream) = started.map_err(failed("starting virtiofsd"))?;
        let connection = Frontend::from_stream(stream, QUEUE_SIZES.len() as u64);
        let known = connection
            .get_features()
            .map_err(failed("asking virtiofsd"))?;
        if features & !known != 0 {
            return Err(StartError(format!(
                "virtiofsd lacks the features {:#x}",
                features & !known
            )));
        }
        let regions: Vec<_> = memory.regions().filter_map(region).collect();
        let wires = set_up(
            &connection,
            &memory,
            &regions,
            &self.events,
            features,
            queues,
        )?;
        Ok(Working {
            _process: process,
            _connection: connection,
            _wires: wires,
        })
    }
}

/// A region of the node's memory, for another process to map. Addresses of ours, by which virtqueues
/// are told, are made the node's own.
fn region(region: &GuestRegionMmap) -> Option<VhostUserMemoryRegionInfo> {
    let offset = region.file_offset()?;
    Some(VhostUserMemoryRegionInfo {
        guest_phys_addr: region.start_addr().raw_value(),
        memory_size: region.len(),
        userspace_addr: region.start_addr().raw_value(),
        mmap_offset: offset.start(),
        mmap_handle: offset.file().as_raw_fd(),
    })
}

impl BackEnd for Files {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: TRANSPORT_FEATURES,
            queue_sizes: QUEUE_SIZES,
        }
    }

    /// `struct virtio_fs_config`: the tag, and how many queues there are for requests.
    fn config(&self) -> Vec<u8> {
        let mut config = self.tag.as_bytes().to_vec();
        config.resize(TAG_SIZE, 0);
        config.extend(1_u32.to_le_bytes());
        config
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        self.working = Some(self.begin(features, queues)?);
        Ok(())
    }

    fn stop(&mut self) {
        self.working = None;
    }
}

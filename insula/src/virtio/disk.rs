//! Disks of a node, by QEMU's storage daemon.

use std::io;
use std::sync::Arc;

use vhost::VhostBackend;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures};

use super::back_end::{Connected, Ends};
use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::keeper::{Keeper, Kept, Trouble};
use super::memory::NodeMemory;
use super::notes::DeviceNotes;
use super::storage_daemon::{self, DiskFile};
use super::vhost::{Events, failed, offered, wire_up};
use crate::driver::Node;

/// Specification, 5.2.
const DEVICE_ID: u32 = 2;
/// Its only virtqueue, for requests: large enough that its ring does not go round while its keeper is
/// a little late.
const QUEUE_SIZES: &[u16] = &[256];
/// Bytes of the configuration that the daemon has (`struct virtio_blk_config` as far as the block
/// size, discarding and writing zeroes go).
const CONFIG_SIZE: u32 = 60;

/// Features by the daemon: segments of a request, read-only, block size, flushing, topology,
/// discarding, writing zeroes. It offers a largest segment as well, but does not say how large.
const DISK_FEATURES: u64 = 1 << 2 | 1 << 5 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 13 | 1 << 14;

/// A file or block device of the base as a disk of a node.
pub struct Disk {
    node: Arc<Node>,
    events: Arc<dyn Events>,
    file: DiskFile,
    notes: DeviceNotes,
    trouble: Arc<dyn Trouble>,
    features: u64,
    config: Vec<u8>,
    /// A daemon that was asked what the disk is, and has not been given work.
    idle: Option<Connected>,
    keeper: Option<Keeper>,
}

impl Disk {
    /// The disk that has the bytes of `file`. Its daemon begins now, since it is who knows what the
    /// device is.
    ///
    /// # Errors
    /// [`StartError`].
    pub(super) fn new(
        node: Arc<Node>,
        events: Arc<dyn Events>,
        file: DiskFile,
        notes: DeviceNotes,
        trouble: Arc<dyn Trouble>,
    ) -> Result<Self, StartError> {
        let mut daemon = connect(&file)?;
        let (features, config) = features(&mut daemon)?;
        Ok(Self {
            node,
            events,
            file,
            notes,
            trouble,
            features,
            config,
            idle: Some(daemon),
            keeper: None,
        })
    }

    fn begin(&mut self, features: u64, queues: &[Virtqueue]) -> Result<Keeper, StartError> {
        if queues.len() != QUEUE_SIZES.len() {
            return Err(StartError("not all its virtqueues are laid out".into()));
        }
        let memory = self.node.memory().map_err(failed("the node's memory"))?;
        let memory = NodeMemory::share(&memory).map_err(failed("the node's memory"))?;
        let daemon = match self.idle.take() {
            Some(daemon) => daemon,
            None => connect(&self.file)?,
        };
        let wires = wire_up(&memory, &self.events, queues)?;
        let file = self.file.clone();
        let kept = Kept {
            name: format!("disk {}", file.path.display()),
            memory,
            features,
            queues: queues.to_vec(),
            wires,
            successor: Some(Box::new(move || connect(&file))),
            notes: self.notes.clone(),
            trouble: Arc::clone(&self.trouble),
        };
        Keeper::begin(daemon, kept)
    }
}

/// What can be offered to the driver, and the configuration.
pub(super) fn features(daemon: &mut Connected) -> Result<(u64, Vec<u8>), StartError> {
    let (flags, empty) = (VhostUserConfigFlags::empty(), [0; CONFIG_SIZE as usize]);
    let front_end = &mut daemon.front_end;
    let known = offered(front_end, DISK_FEATURES);
    let known = known.map_err(failed("asking qemu-storage-daemon"))?;
    let config = front_end.get_config(0, CONFIG_SIZE, flags, &empty);
    let (_, config) = config.map_err(failed("asking qemu-storage-daemon"))?;
    Ok((known, config))
}

/// A daemon that serves the file, and tells whether it does what it is told.
pub(super) fn connect(file: &DiskFile) -> Result<Connected, StartError> {
    let command = storage_daemon::command(file);
    let mut daemon = command
        .and_then(|command| Connected::start(command, QUEUE_SIZES.len(), Ends::WhenAsked))
        .map_err(failed("starting qemu-storage-daemon"))?;
    let asked = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK;
    let front_end = &mut daemon.front_end;
    front_end
        .get_features()
        .and_then(|_| front_end.get_protocol_features())
        .and_then(|known| match known.contains(asked) {
            true => front_end.set_protocol_features(asked),
            false => {
                let lacking = io::Error::from(io::ErrorKind::Unsupported);
                Err(vhost::Error::IOError(lacking))
            }
        })
        .map_err(failed("asking qemu-storage-daemon"))?;
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    Ok(daemon)
}

impl BackEnd for Disk {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: self.features,
            queue_sizes: QUEUE_SIZES,
        }
    }

    fn config(&self) -> Vec<u8> {
        self.config.clone()
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        self.keeper = Some(self.begin(features, queues)?);
        Ok(())
    }

    fn stop(&mut self) {
        self.keeper = None;
        self.notes.forget();
    }

    fn leave(&mut self) {
        self.keeper = None;
    }
}

//! Disks of a node (virtio-blk), served by QEMU's storage daemon.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use insula_node::attachment::DiskFile;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures};

use super::backend_process::{REPLY_TIMEOUT, VhostUserBackend};
use super::device::{Backend, Identity, StartError, Virtqueue};
use super::drain::Drain;
use super::locked_file::LockedFile;
use super::monitor::{BackendLauncher, DeviceContext};
use super::slot::BackendSlot;
use super::vhost::{TRANSPORT_FEATURES, failed, offered};

/// Specification, 5.2.
const DEVICE_ID: u32 = 2;
/// The only virtqueue, for requests: large enough that its ring does not wrap while the monitor is
/// late.
const QUEUE_SIZES: &[u16] = &[256];
/// Bytes of `struct virtio_blk_config` that the daemon supports, up to write zeroes.
const CONFIG_SIZE: u32 = 60;

/// Features of the daemon: SEG_MAX, RO, BLK_SIZE, FLUSH, TOPOLOGY, DISCARD, WRITE_ZEROES. It offers
/// SIZE_MAX as well, but gives no value.
const READ_ONLY: u64 = 1 << 5;
const DISK_FEATURES: u64 = 1 << 2 | READ_ONLY | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 13 | 1 << 14;

/// Configuration fields that the driver needs before the daemon has reported its own: `blk_size`
/// and `seg_max`.
const BLOCK_SIZE_OFFSET: usize = 20;
const SEGMENTS_OFFSET: usize = 12;
/// The daemon's values of these fields.
const BLOCK_SIZE: u32 = 512;
const SEGMENTS: u32 = 126;

/// A configuration shared between threads; `None` until a daemon has reported it.
type SharedConfig = Arc<Mutex<Option<Vec<u8>>>>;

/// A file or block device of the base as a disk of a node.
///
/// Only the daemon knows the size. Until it runs, the disk is present with no blocks, so that later
/// disks keep their names; the driver is notified of the size afterwards.
pub(crate) struct Disk {
    slot: BackendSlot,
    file: LockedFile,
    features: u64,
    config: SharedConfig,
    /// A daemon that serves no virtqueues yet.
    idle: Option<VhostUserBackend>,
}

impl Disk {
    /// A disk backed by `file`. Its daemon is started now.
    pub(super) fn new(slot: BackendSlot, file: DiskFile) -> Self {
        let features = features_of(&file);
        let file = LockedFile::new(file);
        let idle = file.launch(QUEUE_SIZES.len(), &slot.context);
        let idle = idle.map_err(|error| slot.context.set_failure(Some(&error.to_string())));
        Self {
            features,
            slot,
            file,
            config: SharedConfig::default(),
            idle: idle.ok(),
        }
    }

    /// Reads features and configuration from its daemon.
    pub(super) fn query(&mut self, limit: Duration) {
        let Some(mut daemon) = self.idle.take() else {
            return;
        };
        match query(&mut daemon, &self.file, limit) {
            Ok((features, config)) => {
                self.features = features;
                *lock_config(&self.config) = Some(config);
                self.idle = Some(daemon);
                self.slot.context.set_failure(None);
            }
            Err(error) => self.slot.context.set_failure(Some(&error.to_string())),
        }
    }

    /// Name of the disk for messages.
    pub(super) fn name(file: &DiskFile) -> String {
        format!("disk {}", file.path.display())
    }
}

fn lock_config(config: &SharedConfig) -> MutexGuard<'_, Option<Vec<u8>>> {
    config.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The features that the daemon is known to offer.
fn features_of(file: &DiskFile) -> u64 {
    let own = DISK_FEATURES & !READ_ONLY;
    own | TRANSPORT_FEATURES | if file.read_only { READ_ONLY } else { 0 }
}

/// Configuration of a disk without blocks.
fn empty_config() -> Vec<u8> {
    let mut config = vec![0; CONFIG_SIZE as usize];
    for (at, value) in [(SEGMENTS_OFFSET, SEGMENTS), (BLOCK_SIZE_OFFSET, BLOCK_SIZE)] {
        config[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    config
}

/// The features to offer to the driver, and the configuration, of a daemon that has opened the locked file.
fn query(
    daemon: &mut VhostUserBackend,
    file: &LockedFile,
    limit: Duration,
) -> Result<(u64, Vec<u8>), StartError> {
    let needed = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK;
    let began = Instant::now();
    daemon.negotiate(needed, limit)?;
    let limit = limit.saturating_sub(began.elapsed());
    let (flags, empty) = (VhostUserConfigFlags::empty(), [0; CONFIG_SIZE as usize]);
    let answer = daemon.with_timeout(limit, || {
        let mut frontend = daemon.frontend.clone();
        let known = offered(&frontend, DISK_FEATURES);
        let known = known.map_err(failed("asking qemu-storage-daemon"))?;
        let config = frontend.get_config(0, CONFIG_SIZE, flags, &empty);
        let (_, config) = config.map_err(failed("asking qemu-storage-daemon"))?;
        Ok((known, config))
    })?;
    file.check_opened(daemon.id())?;
    Ok(answer)
}

/// Starts a daemon that supports these features, and stores its configuration.
pub(super) fn connect(
    file: &LockedFile,
    features: u64,
    config: &SharedConfig,
    context: &DeviceContext,
) -> Result<VhostUserBackend, StartError> {
    let mut daemon = file.launch(QUEUE_SIZES.len(), context)?;
    let (known, now) = query(&mut daemon, file, REPLY_TIMEOUT)?;
    match features & !known {
        0 => {
            *lock_config(config) = Some(now);
            Ok(daemon)
        }
        lacking => {
            let text = format!("qemu-storage-daemon lacks the features {lacking:#x}");
            Err(StartError::Backend(text))
        }
    }
}

impl Backend for Disk {
    fn identity(&self) -> Identity {
        Identity {
            device_id: DEVICE_ID,
            features: self.features,
            queue_sizes: QUEUE_SIZES,
        }
    }

    fn config(&self) -> Vec<u8> {
        lock_config(&self.config)
            .clone()
            .unwrap_or_else(empty_config)
    }

    fn name(&self) -> String {
        self.slot.context.name.clone()
    }

    fn awaits_config(&self) -> bool {
        lock_config(&self.config).is_none()
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        let (file, context) = (self.file.clone(), self.slot.context.clone());
        let config = Arc::clone(&self.config);
        let launcher = BackendLauncher {
            first: self.idle.take(),
            start: Box::new(move || connect(&file, features, &config, &context)),
            restartable: true,
        };
        self.slot
            .start(features, queues, QUEUE_SIZES.len(), launcher)
    }

    fn change_memory(&mut self) -> Result<(), StartError> {
        self.slot.change_memory()
    }

    fn drain(&self, is_started: bool) -> Result<Option<Drain>, StartError> {
        let refused = |why: &str| StartError::Backend(format!("the {} {why}", self.name()));
        let file = self.file.identity();
        let file = file.ok_or_else(|| refused("is not served"))?;
        let done = match is_started {
            true => Some(self.slot.drain()?),
            false if self.slot.context.may_have_requests() => {
                return Err(refused("has not been taken up again by its driver"));
            }
            false => None,
        };
        Ok(Some(Drain::new(self.name(), file, done)))
    }

    fn stop(&mut self) {
        self.slot.stop();
    }

    fn disconnect(&mut self) {
        self.slot.disconnect();
    }
}

//! Disks of a node, by QEMU's storage daemon.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use vhost::VhostBackend;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures};

use super::back_end::{Connected, Ends};
use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::post::{Post, Shift};
use super::storage_daemon::{self, DiskFile};
use super::vhost::{failed, offered};
use crate::storage::{Lock, LockError};

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
    post: Post,
    file: DiskFile,
    features: u64,
    config: Vec<u8>,
    /// A daemon that was asked what the disk is, and has not been given work.
    idle: Option<Connected>,
    /// Keeps others from writing to the file.
    _lock: Lock,
}

/// How long a supervisor that was killed may take to leave the file.
const LEAVING: Duration = Duration::from_secs(2);
/// How often it is looked whether it has.
const INTERVAL: Duration = Duration::from_millis(10);

impl Disk {
    /// The disk that has the bytes of `file`. Its daemon begins now, since it is who knows what the
    /// device is.
    ///
    /// # Errors
    /// [`StartError`].
    pub(super) fn new(post: Post, file: DiskFile) -> Result<Self, StartError> {
        let lock = lock(&file)?;
        let mut daemon = connect(&file)?;
        let (features, config) = features(&mut daemon)?;
        Ok(Self {
            post,
            file,
            features,
            config,
            idle: Some(daemon),
            _lock: lock,
        })
    }
}

/// Nobody else can write to the file as long as the answer lives.
fn lock(file: &DiskFile) -> Result<Lock, StartError> {
    let began = Instant::now();
    loop {
        match Lock::take(&file.path, file.read_only) {
            Err(LockError::Busy) if began.elapsed() < LEAVING => thread::sleep(INTERVAL),
            taken => return taken.map_err(failed("locking it")),
        }
    }
}

/// The daemon that was asked, or another, and after it any number.
fn shift(file: DiskFile, idle: Option<Connected>) -> Result<Shift, StartError> {
    let program = match idle {
        Some(daemon) => daemon,
        None => connect(&file)?,
    };
    Ok(Shift {
        program,
        name: format!("disk {}", file.path.display()),
        successor: Some(Box::new(move || connect(&file))),
    })
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
        let Self {
            post, file, idle, ..
        } = self;
        let find = || shift(file.clone(), idle.take());
        post.fill(features, queues, QUEUE_SIZES.len(), find)
    }

    fn stop(&mut self) {
        self.post.clear();
    }

    fn leave(&mut self) {
        self.post.leave();
    }
}

//! Disks of a node, by QEMU's storage daemon.

use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures};

use super::back_end::{ANSWER_LIMIT, Connected, Ends};
use super::device::{BackEnd, Identity, StartError, Virtqueue};
use super::keeper::{Programs, Served};
use super::post::Post;
use super::storage::Asked;
use super::storage_daemon::{self, DiskFile};
use super::vhost::{TRANSPORT_FEATURES, failed, offered};
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
const READ_ONLY: u64 = 1 << 5;
const DISK_FEATURES: u64 = 1 << 2 | READ_ONLY | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 13 | 1 << 14;

/// Where the configuration has what the driver needs to know before the daemon has told it: bytes of a
/// block and segments of a request.
const BLOCK_SIZE_AT: usize = 20;
const SEGMENTS_AT: usize = 12;
/// What the daemon tells of these.
const BLOCK_SIZE: u32 = 512;
const SEGMENTS: u32 = 126;

/// A configuration that more than one thread knows of: none until a daemon has told it.
type Told = Arc<Mutex<Option<Vec<u8>>>>;

/// A file or block device of the base as a disk of a node.
///
/// What it is its daemon knows. While there is none, it is a disk without any blocks; so that it has
/// its place among the others. As soon as there is a daemon, the driver is told how large it is.
pub struct Disk {
    post: Post,
    file: LockedFile,
    features: u64,
    config: Told,
    /// A daemon that has not been given work.
    idle: Option<Connected>,
}

/// How long a supervisor that was killed may take to leave the file.
const LEAVING: Duration = Duration::from_secs(2);
/// How often it is looked whether it has.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long the file's storage may take to answer.
const STORAGE_LIMIT: Duration = Duration::from_secs(4);

/// The file of a disk, which nobody else writes to from its first daemon on.
#[derive(Clone)]
pub(super) struct LockedFile {
    file: DiskFile,
    held: Arc<Mutex<Held>>,
}

/// What is had of it.
#[derive(Default)]
pub(super) struct Held {
    lock: Option<Lock>,
    locking: Asked<Lock>,
    preparing: Asked<Command>,
}

impl LockedFile {
    pub(super) fn new(file: DiskFile) -> Self {
        Self {
            file,
            held: Arc::default(),
        }
    }

    /// Locks it, if it is not yet: before a daemon opens it.
    pub(super) fn hold(&self, limit: Duration) -> Result<MutexGuard<'_, Held>, StartError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.lock.is_none() {
            let file = self.file.clone();
            let lock = held.locking.within(limit, move || take_lock(&file))?;
            held.lock = Some(lock);
        }
        Ok(held)
    }

    /// A daemon that serves it.
    fn launch(&self, served: &Served) -> Result<Connected, StartError> {
        let starting = failed("starting qemu-storage-daemon");
        let file = self.file.clone();
        let command = self
            .hold(STORAGE_LIMIT)?
            .preparing
            .within(STORAGE_LIMIT, move || {
                storage_daemon::command(&file).map_err(failed("starting qemu-storage-daemon"))
            })?;
        launch(command, served).map_err(starting)
    }
}

fn take_lock(file: &DiskFile) -> Result<Lock, StartError> {
    let began = Instant::now();
    loop {
        match Lock::take(&file.path, file.read_only) {
            Err(LockError::Busy) if began.elapsed() < LEAVING => thread::sleep(INTERVAL),
            taken => return taken.map_err(failed("locking it")),
        }
    }
}

impl Disk {
    /// The disk that has the bytes of `file`. Its daemon begins now.
    pub(super) fn new(post: Post, file: DiskFile) -> Self {
        let features = features_of(&file);
        let file = LockedFile::new(file);
        let idle = file.launch(&post.served);
        let idle = idle.map_err(|error| post.served.set_failure(Some(&error.to_string())));
        Self {
            features,
            post,
            file,
            config: Told::default(),
            idle: idle.ok(),
        }
    }

    /// Asks its daemon what the disk is, for at most so long.
    pub(super) fn ask(&mut self, limit: Duration) {
        let Some(mut daemon) = self.idle.take() else {
            return;
        };
        match ask(&mut daemon, limit) {
            Ok((features, config)) => {
                self.features = features;
                *told(&self.config) = Some(config);
                self.idle = Some(daemon);
                self.post.served.set_failure(None);
            }
            Err(error) => self.post.served.set_failure(Some(&error.to_string())),
        }
    }

    /// The file's name, for its user.
    pub(super) fn name(file: &DiskFile) -> String {
        format!("disk {}", file.path.display())
    }
}

fn told(config: &Told) -> MutexGuard<'_, Option<Vec<u8>>> {
    config.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the daemon is known to offer.
fn features_of(file: &DiskFile) -> u64 {
    let own = DISK_FEATURES & !READ_ONLY;
    own | TRANSPORT_FEATURES | if file.read_only { READ_ONLY } else { 0 }
}

/// The configuration of a disk of no size.
fn no_disk() -> Vec<u8> {
    let mut config = vec![0; CONFIG_SIZE as usize];
    for (at, value) in [(SEGMENTS_AT, SEGMENTS), (BLOCK_SIZE_AT, BLOCK_SIZE)] {
        config[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    config
}

/// What can be offered to the driver, and the configuration.
pub(super) fn ask(daemon: &mut Connected, limit: Duration) -> Result<(u64, Vec<u8>), StartError> {
    let needed = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK;
    let began = Instant::now();
    daemon.agree(needed, limit)?;
    let limit = limit.saturating_sub(began.elapsed());
    let (flags, empty) = (VhostUserConfigFlags::empty(), [0; CONFIG_SIZE as usize]);
    daemon.within(limit, || {
        let mut front_end = daemon.front_end.clone();
        let known = offered(&front_end, DISK_FEATURES);
        let known = known.map_err(failed("asking qemu-storage-daemon"))?;
        let config = front_end.get_config(0, CONFIG_SIZE, flags, &empty);
        let (_, config) = config.map_err(failed("asking qemu-storage-daemon"))?;
        Ok((known, config))
    })
}

fn launch(command: Command, served: &Served) -> io::Result<Connected> {
    Connected::start(command, QUEUE_SIZES.len(), Ends::WhenAsked, served)
}

/// A daemon that serves the file with these features, and has told what the disk is.
pub(super) fn connect(
    file: &LockedFile,
    features: u64,
    config: &Told,
    served: &Served,
) -> Result<Connected, StartError> {
    let mut daemon = file.launch(served)?;
    let (known, now) = ask(&mut daemon, ANSWER_LIMIT)?;
    match features & !known {
        0 => {
            *told(config) = Some(now);
            Ok(daemon)
        }
        lacking => {
            let text = format!("qemu-storage-daemon lacks the features {lacking:#x}");
            Err(StartError::BackEnd(text))
        }
    }
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
        told(&self.config).clone().unwrap_or_else(no_disk)
    }

    fn name(&self) -> String {
        self.post.served.name.clone()
    }

    fn awaits_config(&self) -> bool {
        told(&self.config).is_none()
    }

    fn start(&mut self, features: u64, queues: &[Virtqueue]) -> Result<(), StartError> {
        let (file, served) = (self.file.clone(), self.post.served.clone());
        let config = Arc::clone(&self.config);
        let programs = Programs {
            first: self.idle.take(),
            start: Box::new(move || connect(&file, features, &config, &served)),
            follow: true,
        };
        self.post
            .fill(features, queues, QUEUE_SIZES.len(), programs)
    }

    fn change_memory(&mut self) -> Result<(), StartError> {
        self.post.change_memory()
    }

    fn stop(&mut self) {
        self.post.clear();
    }

    fn leave(&mut self) {
        self.post.leave();
    }
}

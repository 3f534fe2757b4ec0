//! The file or block device of a disk, which nobody else may write to.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use insula_base::storage::{Identity, Lock, LockError};
use insula_node::attachment::DiskFile;

use super::backend_process::{ExitOn, VhostUserBackend};
use super::device::StartError;
use super::monitor::DeviceContext;
use super::storage_daemon;
use super::storage_query::StorageQuery;
use super::vhost::failed;

/// Time a killed supervisor gets to release the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which that is polled.
const INTERVAL: Duration = Duration::from_millis(10);

/// Timeout of the file's storage.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(4);

/// The file of a disk, locked from its first daemon on.
#[derive(Clone)]
pub(super) struct LockedFile {
    file: DiskFile,
    state: Arc<Mutex<FileState>>,
}

/// Lock and pending storage queries of a file.
#[derive(Default)]
pub(super) struct FileState {
    lock: Option<Lock>,
    lock_query: StorageQuery<Lock>,
    command_query: StorageQuery<Command>,
}

impl LockedFile {
    pub(super) fn new(file: DiskFile) -> Self {
        Self {
            file,
            state: Arc::default(),
        }
    }

    /// Locks the file before a daemon opens it.
    pub(super) fn lock(&self, limit: Duration) -> Result<MutexGuard<'_, FileState>, StartError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lock.is_none() {
            let file = self.file.clone();
            let lock = state
                .lock_query
                .with_timeout(limit, move || wait_lock(&file))?;
            state.lock = Some(lock);
        }
        Ok(state)
    }

    /// Starts a daemon that serves the file.
    pub(super) fn launch(
        &self,
        queues: usize,
        context: &DeviceContext,
    ) -> Result<VhostUserBackend, StartError> {
        let starting = failed("starting qemu-storage-daemon");
        let file = self.file.clone();
        let command = self
            .lock(STORAGE_TIMEOUT)?
            .command_query
            .with_timeout(STORAGE_TIMEOUT, move || {
                storage_daemon::command(&file).map_err(failed("starting qemu-storage-daemon"))
            })?;
        VhostUserBackend::start(command, queues, ExitOn::Sigterm, context).map_err(starting)
    }

    /// What was locked; `None` if nothing is yet.
    pub(super) fn identity(&self) -> Option<Identity> {
        // Not awaited: a thread that has it waits for the storage.
        let state = self.state.try_lock().ok()?;
        state.lock.as_ref().map(Lock::identity)
    }

    /// Checks that a daemon, which opens it by its path, has opened what is locked.
    pub(super) fn check_opened(&self, daemon: u32) -> Result<(), StartError> {
        let Some(locked) = self.identity() else {
            return Err(StartError::Backend("its file is not locked".into()));
        };
        match has_open(daemon, locked) {
            Ok(true) => Ok(()),
            Ok(false) => Err(StartError::Backend(
                "another file is at its path by now than the node began with".into(),
            )),
            Err(error) => Err(failed("looking for the files of qemu-storage-daemon")(
                error,
            )),
        }
    }
}

fn wait_lock(file: &DiskFile) -> Result<Lock, StartError> {
    let began = Instant::now();
    loop {
        match Lock::take(&file.path, file.read_only) {
            Err(LockError::Busy) if began.elapsed() < LOCK_TIMEOUT => thread::sleep(INTERVAL),
            taken => return taken.map_err(failed("locking it")),
        }
    }
}

/// Whether a process has the file or device open. Storage that may hang is not asked: the identity of an
/// open file is known.
fn has_open(process: u32, file: Identity) -> io::Result<bool> {
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        // One that has been closed meanwhile is not the disk.
        if Identity::of_open(&entry?.path()).is_ok_and(|open| open == file) {
            return Ok(true);
        }
    }
    Ok(false)
}

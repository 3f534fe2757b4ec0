//! Waiting until no request of a node, which is paused, is in flight at a disk.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use insula_base::storage::Identity;

use super::device::StartError;

/// A disk whose requests are being completed.
pub(super) struct Drain {
    /// Name of the disk.
    name: String,
    file: Identity,
    /// Gets a message when they are; `None` if its driver has never used it.
    done: Option<Receiver<()>>,
}

impl Drain {
    pub(super) fn new(name: String, file: Identity, done: Option<Receiver<()>>) -> Self {
        Self { name, file, done }
    }

    /// Waits until all are completed, and returns the file or device that has been written to.
    ///
    /// # Errors
    /// They are not in time, or the device has ended.
    pub(super) fn wait(self, until: Instant) -> Result<Identity, StartError> {
        let left = until.saturating_duration_since(Instant::now());
        let name = self.name;
        match self.done.map_or(Ok(()), |done| done.recv_timeout(left)) {
            Ok(()) => Ok(self.file),
            Err(RecvTimeoutError::Timeout) => Err(StartError::Backend(format!(
                "the {name} does not complete its requests"
            ))),
            Err(RecvTimeoutError::Disconnected) => Err(StartError::Backend(format!(
                "the {name} was stopped while it completed its requests"
            ))),
        }
    }
}

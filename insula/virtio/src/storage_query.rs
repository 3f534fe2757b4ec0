//! Queries to storage that may hang.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::device::StartError;

/// A query to storage, made in a thread of its own: with an unreachable server it may block without
/// limit.
pub(super) struct StorageQuery<T> {
    pending: Option<Receiver<Result<T, StartError>>>,
}

impl<T> Default for StorageQuery<T> {
    fn default() -> Self {
        Self { pending: None }
    }
}

impl<T: Send + 'static> StorageQuery<T> {
    /// The result of `query`, or an error after `limit`. A later call waits for the pending query
    /// instead of starting another one, so there is at most one blocked thread.
    pub(super) fn with_timeout(
        &mut self,
        limit: Duration,
        query: impl FnOnce() -> Result<T, StartError> + Send + 'static,
    ) -> Result<T, StartError> {
        let pending = self.pending.take().unwrap_or_else(|| spawn_query(query));
        match pending.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.pending = Some(pending);
                Err(StartError::Backend("its storage does not answer".into()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(StartError::Backend(
                "its storage could not be queried".into(),
            )),
        }
    }
}

fn spawn_query<T: Send + 'static>(
    query: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Receiver<Result<T, StartError>> {
    let (answer, pending) = mpsc::channel();
    // The receiver may be gone by then.
    thread::spawn(move || drop(answer.send(query())));
    pending
}

//! Asking storage that may not answer.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::device::StartError;

/// Something that only storage can give. It is asked in a thread of its own: one that asks a server which is gone
/// waits for as long as that is, and nobody else is to wait with it.
pub(super) struct Asked<T> {
    pending: Option<Receiver<Result<T, StartError>>>,
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Self { pending: None }
    }
}

impl<T: Send + 'static> Asked<T> {
    /// What `ask` answers, if it does within the limit. As long as it has not, a later call waits for that answer
    /// and asks nothing anew: so there is one thread that waits, however often it is tried.
    pub(super) fn within(
        &mut self,
        limit: Duration,
        ask: impl FnOnce() -> Result<T, StartError> + Send + 'static,
    ) -> Result<T, StartError> {
        let pending = self.pending.take().unwrap_or_else(|| begin(ask));
        match pending.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                self.pending = Some(pending);
                Err(StartError::BackEnd("its storage does not answer".into()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(StartError::BackEnd("its storage could not be asked".into()))
            }
        }
    }
}

fn begin<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Receiver<Result<T, StartError>> {
    let (answer, pending) = mpsc::channel();
    // Whoever has asked may be gone by then.
    thread::spawn(move || drop(answer.send(ask())));
    pending
}

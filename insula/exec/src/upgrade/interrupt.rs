//! Signals that end the command: during an upgrade they are a failure, which is undone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use insula_base::error::Error;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether such a signal has come since the upgrade began. Dropping it leaves the signals ignored:
/// what is left to do is short.
pub(super) struct Interrupt {
    came: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Interrupt {
    /// Catches the signals.
    pub(super) fn begin() -> Result<Self, Error> {
        let came = Arc::<AtomicBool>::default();
        let ids = [SIGHUP, SIGINT, SIGTERM]
            .into_iter()
            .map(|signal| signal_hook::flag::register(signal, Arc::clone(&came)))
            .collect::<io::Result<_>>();
        let ids = ids.map_err(|error| {
            Error::new("signals cannot be caught")
                .because(error)
                .untouched()
        })?;
        Ok(Self { came, ids })
    }

    /// Fails if one has come.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.came.load(Ordering::Relaxed) {
            true => Err(Error::new("it was interrupted")),
            false => Ok(()),
        }
    }

    /// Forgets that one has come: what undoes the upgrade is not interrupted.
    pub(super) fn forget(&self) {
        self.came.store(false, Ordering::Relaxed);
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

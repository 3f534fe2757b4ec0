//! Serving a file system on disk.

use insula_server::block::{BlockDevice, Source, SourceError};
use insula_server::command::EndSignals;
use insula_server::ext4::{self, Ext4};
use insula_server::files::Files;
use insula_server::nvme::Completions;
use insula_server::{Endpoint, Handler, Reply, Request};

/// Why it is not served, or no longer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Server(#[from] insula_server::Error),
    #[error("cannot use {device}: {source}")]
    Device { device: Source, source: SourceError },
    #[error("cannot mount {device}: {source}")]
    Mount { device: Source, source: ext4::Error },
    #[error("cannot unmount {device}: {source}; the next mount replays the journal")]
    Unmount { device: Source, source: ext4::Error },
    #[error("cannot catch signals: {0}")]
    Signals(#[from] std::io::Error),
}

/// A file server that commits in time, and says what goes wrong.
struct Disk {
    files: Files<Ext4<Box<dyn BlockDevice>>>,
    has_said: bool,
}

impl Disk {
    fn commit_if_due(&mut self) {
        // An error stops all changes, which is said below.
        let _ = self.files.system().commit_if_due();
        if let Some(error) = self.files.system().stopped()
            && !std::mem::replace(&mut self.has_said, true)
        {
            eprintln!("insula-files: nothing can be changed any more: {error}");
        }
    }
}

impl Handler for Disk {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        self.commit_if_due();
        self.files.handle(request)
    }
}

/// Serves until SIGTERM or SIGINT comes.
pub(crate) fn serve(
    name: &str,
    (device, completions): (&Source, Completions),
    cache_bytes: u64,
) -> Result<(), Error> {
    let signals = EndSignals::catch()?;
    let endpoint = Endpoint::create(name)?;
    let not_mounted = |source| Error::Mount {
        device: device.clone(),
        source,
    };
    let opened = device.open(completions).map_err(|source| Error::Device {
        device: device.clone(),
        source,
    })?;
    let cache = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
    let mut disk = Disk {
        files: Files::new(Ext4::mount(opened, cache).map_err(not_mounted)?),
        has_said: false,
    };
    let ended = signals.serve(&endpoint, &mut disk, Disk::commit_if_due);
    let unmounted = disk.files.into_system().unmount();
    unmounted.map_err(|source| Error::Unmount {
        device: device.clone(),
        source,
    })?;
    Ok(ended?)
}

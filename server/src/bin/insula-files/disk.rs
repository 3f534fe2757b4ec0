//! Serving a file system on disk.

use insula_server::block::{BlockDevice, Source, SourceError};
use insula_server::command::EndSignals;
use insula_server::ext4::{self, Ext4};
use insula_server::files::{Files, ShardThreads, Sharded, SharedSystem};
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
    #[error("cannot unmount it: a thread still serves it; the next mount replays the journal")]
    StillServed,
    #[error("cannot catch signals: {0}")]
    Signals(#[from] std::io::Error),
}

type System = Ext4<Box<dyn BlockDevice + Send>>;

/// What has the names of a file system on disk: alone, or beside shards.
trait Names: Handler {
    /// Does something with the file system.
    fn with<T>(&mut self, act: impl FnOnce(&mut System) -> T) -> T;
}

impl Names for Files<System> {
    fn with<T>(&mut self, act: impl FnOnce(&mut System) -> T) -> T {
        act(self.system())
    }
}

impl Names for Files<SharedSystem<System>> {
    fn with<T>(&mut self, act: impl FnOnce(&mut System) -> T) -> T {
        act(&mut self.system().lock())
    }
}

/// A file server that commits in time, and says what goes wrong.
struct Disk<N> {
    names: N,
    has_said: bool,
}

impl<N: Names> Disk<N> {
    fn new(names: N) -> Self {
        Self {
            names,
            has_said: false,
        }
    }

    fn commit_if_due(&mut self) {
        let has_said = &mut self.has_said;
        self.names.with(|system| {
            // An error stops all changes, which is said below.
            let _ = system.commit_if_due();
            if let Some(error) = system.stopped()
                && !std::mem::replace(has_said, true)
            {
                eprintln!("insula-files: nothing can be changed any more: {error}");
            }
        });
    }
}

impl<N: Names> Handler for Disk<N> {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        self.commit_if_due();
        self.names.handle(request)
    }
}

/// Serves until SIGTERM or SIGINT comes.
pub(crate) fn serve(
    (name, is_copied): (&str, bool),
    (device, completions): (&Source, Completions),
    (shards, cache_bytes): (usize, u64),
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
    let blocks = if shards == 0 { cache } else { cache / 2 };
    let system = Ext4::mount(opened, blocks).map_err(not_mounted)?;
    let (system, ended) = match shards {
        0 => {
            let mut disk = Disk::new(Files::new(system).copied(is_copied));
            let ended = signals.serve(&endpoint, &mut disk, Disk::commit_if_due);
            (disk.names.into_system(), ended)
        }
        shards => serve_shards(
            ((name, is_copied), &endpoint),
            &signals,
            (system, shards, cache - blocks),
        )?,
    };
    system.unmount().map_err(|source| Error::Unmount {
        device: device.clone(),
        source,
    })?;
    Ok(ended?)
}

/// Serves by shards, likewise. Returns the file system, and why it is served no longer.
fn serve_shards(
    ((name, is_copied), endpoint): ((&str, bool), &Endpoint),
    signals: &EndSignals,
    (system, shards, cache_bytes): (System, usize, usize),
) -> Result<(System, Result<(), insula_server::Error>), Error> {
    let (sharded, names, shards) = Sharded::new(system, shards, cache_bytes);
    let threads = ShardThreads::start((name, is_copied), shards)?;
    let mut disk = Disk::new(names);
    let ended = signals.serve(endpoint, &mut disk, Disk::commit_if_due);
    drop((threads, disk));
    let system = sharded.into_system().ok_or(Error::StillServed)?;
    Ok((system, ended))
}

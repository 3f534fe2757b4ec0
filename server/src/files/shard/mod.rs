//! A file server spread over threads, and so over cores: each of its *shards* has the content of those files whose
//! inodes are its own (as uFS has it; Liu et al., SOSP 2021).
//!
//! # Who does what
//!
//! One thread has all names: it is asked by path, and opens files. The reply to an open says which shard has the file. From
//! then on the kernel asks that shard, at an endpoint of its own, for whatever is done by the descriptor
//! (`abi/include/insula_files.h`). So two programs that read different files wait for each other no more than their files do.
//!
//! # What they share
//!
//! The file system is one, behind a lock. A shard keeps what it has read of its files ([`cache`]), and attributes, and needs
//! the lock only for what it does not have, and for changes. These it makes in the file system first, then in its cache: so
//! a crash, an `fsync`, and the room that there is are as without shards.
//!
//! What the thread of names changes of a file, it has the file's shard forget before it replies. A shard reads from the
//! file system with its cache locked: so it keeps nothing that is older than what it was made to forget.
//!
//! A shard's pages are shared with the kernel as those of a server without shards, and announced at its own endpoint: by
//! itself, or by the thread of names, of what it has made the shard forget. Each announces before it replies, and one at a
//! time ([`Part::announcer`]): so the kernel hears of a page before it hears that it is one no more.
//!
//! # Cores
//!
//! A shard's thread begins on a core of its own, as far as the process may use so many ([`ShardThreads`]), and is moved by the name of its
//! endpoint as any server.
//!
//! # Locks
//!
//! In this order: counts of open inodes, cache of a shard or a table of open files, file system; with any of these nobody
//! announces.

mod cache;
mod handler;
mod system;
mod threads;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use self::cache::ContentCache;
pub use self::handler::Shard;
pub use self::system::SharedSystem;
pub use self::threads::ShardThreads;
use crate::files::handler::Files;
use crate::files::open_files::{OpenFiles, lock, shard_of};
use crate::files::system::{FileSystem, Inode};
use crate::pages::PagePool;
use crate::{Announcement, Endpoint};

/// Tells the kernel of pages, where it asks a shard for them.
pub trait Announcer: fmt::Debug + Send + Sync {
    /// Announces, in this order. When this returns, the kernel has heard it.
    fn announce(&self, announcements: &[Announcement]);
}

impl Announcer for Endpoint {
    fn announce(&self, announcements: &[Announcement]) {
        // It fails when the endpoint is closed: then the kernel has forgotten all.
        let _ = Self::announce(self, announcements);
    }
}

/// What belongs to a shard.
#[derive(Debug)]
struct Part {
    cache: Mutex<ContentCache>,
    pool: PagePool,
    /// Who has it locked announces what there is to be announced. None if the kernel is to read nothing by itself.
    announcer: Mutex<Option<Arc<dyn Announcer>>>,
}

impl Part {
    fn new(bytes: usize) -> Self {
        let cache = ContentCache::new(bytes);
        Self {
            pool: cache.pool().clone(),
            cache: Mutex::new(cache),
            announcer: Mutex::new(None),
        }
    }
}

/// A file system that the threads of a server share.
#[derive(Debug)]
struct Shared<F> {
    system: Mutex<F>,
    parts: Box<[Part]>,
}

impl<F> Shared<F> {
    /// Returns what belongs to the shard that has an inode's content.
    fn part_of(&self, inode: Inode) -> &Part {
        &self.parts[shard_of(inode, self.parts.len()) - 1]
    }

    /// Locks what that shard keeps.
    fn cache_of(&self, inode: Inode) -> MutexGuard<'_, ContentCache> {
        lock(&self.part_of(inode).cache)
    }

    /// Has the kernel hear of a shard's pages, by its index, and read them by itself.
    fn set_announcer(&self, index: usize, announcer: Arc<dyn Announcer>) {
        let part = &self.parts[index];
        *lock(&part.announcer) = Some(announcer);
        lock(&part.cache).set_shared();
    }

    /// Announces what a shard's pages have become, by its index.
    fn announce(&self, index: usize) {
        let part = &self.parts[index];
        if let Some(announcer) = lock(&part.announcer).as_deref() {
            let announcements = part.pool.take_announcements();
            if !announcements.is_empty() {
                announcer.announce(&announcements);
            }
        }
    }
}

/// A file system that is served by several threads.
#[derive(Debug)]
pub struct Sharded<F> {
    shared: Arc<Shared<F>>,
}

impl<F: FileSystem> Sharded<F> {
    /// Divides a file system among shards, one at least, which keep `bytes` of content in all. Returns it, what serves
    /// names, and the shards.
    pub fn new(
        system: F,
        shards: usize,
        bytes: usize,
    ) -> (Self, Files<SharedSystem<F>>, Vec<Shard<F>>) {
        let shards = shards.max(1);
        let shared = Arc::new(Shared {
            system: Mutex::new(system),
            parts: (0..shards).map(|_| Part::new(bytes / shards)).collect(),
        });
        let (names, open) = OpenFiles::of_threads(shards);
        let files = |number, open| Files::with(SharedSystem::new(&shared, number), open);
        let names = files(0, names);
        let numbered = (1..).zip(open);
        let shards = numbered.map(|(number, open)| Shard::new(files(number, open)));
        let shards = shards.collect();
        (Self { shared }, names, shards)
    }

    /// Locks the file system.
    pub fn system(&self) -> MutexGuard<'_, F> {
        lock(&self.shared.system)
    }

    /// Returns the file system, once all that serve it are dropped.
    #[must_use]
    pub fn into_system(self) -> Option<F> {
        let shared = Arc::into_inner(self.shared)?;
        let system = shared.system.into_inner();
        Some(system.unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

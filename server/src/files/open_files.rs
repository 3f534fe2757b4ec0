//! The open files of a server, by handle, and how often each inode is open.
//!
//! A server has one table of them for each of its threads: the thread of names has that of directories and links, each
//! shard that of its files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::files::attributes::FileType;
use crate::files::description::Description;
use crate::files::system::Inode;

/// Most open files of a table.
const DESCRIPTIONS_MAX: usize = 1 << 20;

/// Locks what a thread that has panicked may have left: it is whole at any time.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Table = BTreeMap<u64, Description>;

#[derive(Debug)]
struct Tables {
    /// The first one is that of the thread of names.
    all: Box<[Mutex<Table>]>,
    /// Locked before a table. Held while a name or an open file goes, until it is known whether it was the last one.
    counts: Mutex<OpenCounts>,
}

/// How often each inode is open.
#[derive(Debug, Default)]
pub(super) struct OpenCounts(BTreeMap<Inode, u32>);

impl OpenCounts {
    pub(super) fn is_open(&self, inode: Inode) -> bool {
        self.0.contains_key(&inode)
    }

    /// Opens it once more.
    pub(super) fn open(&mut self, inode: Inode) {
        *self.0.entry(inode).or_default() += 1;
    }

    /// Closes it once. Returns whether it is open no more.
    pub(super) fn close(&mut self, inode: Inode) -> bool {
        let count = self.0.get_mut(&inode).map(|count| {
            *count -= 1;
            *count
        });
        if count == Some(0) {
            self.0.remove(&inode);
        }
        count == Some(0)
    }
}

/// The table of a thread, and what it knows of the others'.
#[derive(Debug)]
pub(super) struct OpenFiles {
    own: usize,
    tables: Arc<Tables>,
}

impl OpenFiles {
    /// Creates those of a server with some shards: of the thread of names, and of each shard.
    pub(super) fn of_threads(shards: usize) -> (Self, Vec<Self>) {
        let tables = Arc::new(Tables {
            all: (0..=shards).map(|_| Mutex::default()).collect(),
            counts: Mutex::default(),
        });
        let of = |own| Self {
            own,
            tables: Arc::clone(&tables),
        };
        (of(0), (1..=shards).map(of).collect())
    }

    /// Creates that of a server without shards.
    pub(super) fn of_one_thread() -> Self {
        Self::of_threads(0).0
    }

    fn own(&self) -> MutexGuard<'_, Table> {
        lock(&self.tables.all[self.own])
    }

    /// Returns the number of the shard that has an inode's content; 0 if there are none, or it is no file.
    fn shard_of(&self, inode: Inode, kind: FileType) -> usize {
        match self.tables.all.len() - 1 {
            0 => 0,
            _ if kind != FileType::File => 0,
            shards => shard_of(inode, shards),
        }
    }

    /// Adds one under the handle that the kernel has chosen, to the table of the shard that has the file. Returns
    /// that shard's number.
    pub(super) fn add(
        &self,
        handle: u64,
        description: Description,
        kind: FileType,
    ) -> Result<usize, Errno> {
        let shard = self.shard_of(description.inode, kind);
        let mut counts = self.counts();
        let mut table = lock(&self.tables.all[shard]);
        if table.len() >= DESCRIPTIONS_MAX {
            return Err(Errno::ENFILE);
        }
        if table.contains_key(&handle) {
            return Err(Errno::EINVAL);
        }
        counts.open(description.inode);
        table.insert(handle, description);
        Ok(shard)
    }

    /// Returns one of this thread's.
    pub(super) fn find(&self, handle: u64) -> Result<Description, Errno> {
        // The server may have been another one, which has died with its descriptions.
        self.own().get(&handle).copied().ok_or(Errno::ESTALE)
    }

    /// Returns the inode of one of any thread's.
    pub(super) fn inode_of(&self, handle: u64) -> Result<Inode, Errno> {
        let mut all = self.tables.all.iter();
        let found = all.find_map(|table| lock(table).get(&handle).map(|one| one.inode));
        found.ok_or(Errno::ESTALE)
    }

    /// Changes one of this thread's.
    pub(super) fn update<T>(
        &self,
        handle: u64,
        change: impl FnOnce(&mut Description) -> T,
    ) -> Result<T, Errno> {
        self.own().get_mut(&handle).map(change).ok_or(Errno::ESTALE)
    }

    /// Takes over the offset of one of this thread's as the kernel knows it, if that is newer.
    pub(super) fn tell_offset(&self, handle: u64, offset: u64, number: u64) -> Result<(), Errno> {
        self.update(handle, |description| {
            if number > description.told {
                description.told = number;
                description.offset = offset;
            }
        })
    }

    /// Returns the offset of one of this thread's.
    pub(super) fn offset(&self, handle: u64) -> Result<u64, Errno> {
        self.find(handle).map(|description| description.offset)
    }

    /// Sets the offset of one of this thread's.
    pub(super) fn set_offset(&self, handle: u64, offset: u64) -> Result<(), Errno> {
        self.update(handle, |description| description.offset = offset)
    }

    /// Removes one of this thread's. Returns its inode, which is to be closed.
    pub(super) fn remove(&self, handle: u64) -> Option<Inode> {
        self.own().remove(&handle).map(|removed| removed.inode)
    }

    /// Locks what is open how often.
    pub(super) fn counts(&self) -> MutexGuard<'_, OpenCounts> {
        lock(&self.tables.counts)
    }
}

/// Returns the number of the shard that has an inode's content: numbers that follow each other are spread.
pub(super) fn shard_of(inode: Inode, shards: usize) -> usize {
    1 + (inode % shards as u64) as usize
}

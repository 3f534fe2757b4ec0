//! A file system on disk: ext4, as `mke2fs -t ext4` of e2fsprogs makes it, and Linux mounts it.
//!
//! # What is supported
//!
//! Blocks of 1024 to 4096 bytes and inodes of 256 bytes or more; a journal in the file system; extents,
//! of any depth; directories of any size, but as lists: names in large ones take time. Of the features
//! these, others are refused by name before anything is written:
//!
//! | set | features |
//! |---|---|
//! | compatible | all but `sparse_super2`; `has_journal` must be there. Of those, `dir_index`, `ext_attr`, `resize_inode`, `orphan_file` and `fast_commit` are not used, only kept |
//! | incompatible | `filetype` and `extent`, which must be there; `64bit`, `flex_bg`, `metadata_csum_seed` |
//! | compatible for reading | `sparse_super`, `large_file`, `huge_file`, `uninit_bg`, `dir_nlink`, `extra_isize`, `metadata_csum` |
//!
//! # What survives a crash
//!
//! All changes of metadata are transactions of the journal, of whole calls: a crash leaves what was
//! at the end of some call, not before the last [`sync`](crate::files::FileSystem::sync). Data are
//! written before what refers to them (as by Linux with `data=ordered`). A call that fails in the middle,
//! by the device or by what is on it, is the last one that changes anything: what it has begun is not
//! committed.
//!
//! # Sources
//!
//! Documentation/filesystems/ext4 of Linux describes what is on disk, with the names of Linux' structures.

mod allocate;
mod attribute;
mod bitmap;
mod cache;
mod checksum;
mod directory;
mod error;
mod extent;
mod feature;
mod file;
mod group;
mod inode;
mod journal;
mod mapped;
mod mount;
mod orphan;
mod read_ahead;
mod superblock;
mod system;
mod transaction;

use std::collections::BTreeSet;
use std::time::Instant;

use hashbrown::HashMap;

use self::allocate::Freed;
use self::cache::Cache;
pub use self::error::Error;
use self::extent::Extent;
use self::group::Group;
use self::inode::Inode;
use self::journal::Journal;
use self::mapped::MappedFiles;
use self::read_ahead::ReadAhead;
use self::superblock::Superblock;

/// A mounted ext4 file system.
#[derive(Debug)]
pub struct Ext4<D> {
    cache: Cache<D>,
    superblock: Superblock,
    groups: Vec<Group>,
    journal: Journal,
    /// Inodes on the list of orphans, the last one first on it.
    orphans: Vec<u32>,
    /// What the running transaction has freed, and which of it must not be replayed.
    freed: Freed,
    revoked: BTreeSet<u64>,
    /// When the running transaction has begun.
    began: Option<Instant>,
    /// A call has failed in the middle by this: nothing is changed any more.
    stopped: Option<Error>,
    /// The extent that was found last, and the inode that has it.
    recent: Option<(u32, Extent)>,
    /// Inodes that were read or stored: as they are in the cache of blocks, and checked.
    inodes: HashMap<u32, Inode>,
    mapped: MappedFiles,
    read_ahead: ReadAhead,
    /// When all was committed last.
    committed: Instant,
}

/// Most inodes that are kept so.
const INODES_MAX: usize = 4096;

#[cfg(test)]
mod tests;

//! File servers: the calls of unmodified programs on files, answered by a file system.
//!
//! The lightweight kernel turns a program's call on a file below a mount point into a request
//! (`abi/include/insula_files.h`). [`Files`] has what is Linux' about it: open file descriptions with
//! their offsets and flags, walks of paths, symbolic links, the structures of stat(2) and getdents(2), and
//! the errors in the right order. What is left is a [`FileSystem`]: inodes, names and blocks. [`Memory`]
//! is one. [`Sharded`] has several threads serve one.

mod attributes;
mod content;
mod description;
mod directory;
mod handler;
mod mapped;
mod memory;
mod names;
mod open_files;
mod reply;
mod shard;
mod status;
mod system;
mod tree;
mod walk;

pub use attributes::{Attributes, Changes, FileType, Time};
pub use handler::Files;
pub use memory::Memory;
pub use shard::{Announcer, Shard, ShardThreads, Sharded, SharedSystem};
pub use system::{Entry, FileSystem, Inode, Statistics};

#[cfg(test)]
pub(crate) mod tests;

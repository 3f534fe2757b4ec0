//! Command line of `insula-files`.

use clap::{Parser, Subcommand};
use insula_abi::files::SHARDS_MAX;

use crate::block::Source;
use crate::command::size;

/// Serves files to programs of a lightweight-kernel node, on which it runs
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "insula-files", version)]
pub struct FilesOptions {
    /// What file system it serves
    #[command(subcommand)]
    pub system: System,
    /// Name of the endpoint
    #[arg(long, global = true, default_value = "file")]
    pub name: String,
    /// Threads that have the content of open files, by their inodes, each on a core of its own as far as it has so many:
    /// endpoints NAME.1, NAME.2, and so on. Without, one thread has all
    #[arg(long, global = true, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=SHARDS_MAX as i64))]
    pub shards: u16,
    /// Copy whatever is read: the kernel reads no page of the cache by itself
    #[arg(long, global = true)]
    pub no_share: bool,
}

/// What file system it serves.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum System {
    /// A file system in memory, empty at first
    Memory {
        /// Most bytes of all files, such as 64M
        #[arg(long, default_value = "64M", value_parser = size)]
        size: u64,
    },
    /// A file system on disk that `mke2fs -t ext4` has made. SIGTERM and SIGINT unmount it
    Ext4 {
        /// File or block device of the base, or `nvme:ADDRESS`: the NVMe controller at that PCI address, such
        /// as nvme:0000:01:00.0, which the node was given by `insula run --device`; or `server:NAME`: what the
        /// block server of that name has
        #[arg(long)]
        device: Source,
        /// Most bytes that are cached, such as 64M
        #[arg(long, default_value = "64M", value_parser = size)]
        cache: u64,
        /// Look at an NVMe controller again and again while it works, rather than have it interrupt
        #[arg(long)]
        poll: bool,
    },
}

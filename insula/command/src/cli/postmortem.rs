//! Options of the commands that examine a node's memory.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use insula_base::units::Size;
use insula_driver::name::Name;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Dump {
    #[command(subcommand)]
    pub(crate) command: Option<DumpCommand>,
    #[command(flatten)]
    pub(crate) node: Option<DumpNode>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DumpCommand {
    /// List the stored dumps, oldest first
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove dumps
    Rm {
        /// The dumps, by their names in `insula dump ls`
        #[arg(required = true, value_name = "DUMP")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DumpNode {
    /// The node, running or not
    #[arg(value_name = "NODE")]
    pub(crate) name: Name,
    /// File to write; by default the dump is stored in /var/lib/insula/dumps, where it may displace
    /// the oldest
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Interrupt each core of a running node, so that its registers are in the dump; the node
    /// prints a backtrace and continues
    #[arg(long)]
    pub(crate) nmi: bool,
    /// Number of dumps stored; by default $INSULA_DUMPS_MAX, else 8
    #[arg(long, value_name = "COUNT", conflicts_with = "output")]
    pub(crate) max: Option<usize>,
    /// Disk space that all stored dumps may take; by default $INSULA_DUMPS_SIZE_MAX, else 16G
    #[arg(long, value_name = "SIZE", conflicts_with = "output")]
    pub(crate) size_max: Option<Size>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Postmortem {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Backtrace {
    /// The node
    #[arg(value_name = "NODE")]
    pub(crate) name: Name,
}

#[derive(Debug, Args)]
pub(crate) struct Debug {
    /// The node, running or not
    #[arg(value_name = "NODE")]
    pub(crate) name: Name,
    /// Listen on this port of 127.0.0.1 (0: any free one), instead of a socket for root only
    #[arg(long, value_name = "PORT", conflicts_with = "stdio")]
    pub(crate) port: Option<u16>,
    /// Use standard input and output: gdb -ex 'target remote | insula debug --stdio NODE'
    #[arg(long)]
    pub(crate) stdio: bool,
}

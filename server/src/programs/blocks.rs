//! Command line of `insula-blocks`.

use clap::Parser;

use crate::block::Source;
use crate::command::size;

/// Serves a block device to one process of a lightweight-kernel node, on which it runs. SIGTERM and SIGINT have it
/// flush the device, and end
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "insula-blocks", version)]
pub struct BlocksOptions {
    /// Name of the endpoint
    #[arg(long, default_value = "block")]
    pub name: String,
    /// File or block device of the base; or `nvme:ADDRESS`: the NVMe controller at that PCI address, such as
    /// nvme:0000:01:00.0, which the node was given by `insula run --device`; or `server:NAME`: what the block server of
    /// that name has
    #[arg(long)]
    pub device: Source,
    /// Most bytes that are cached, such as 64M; 0 for none
    #[arg(long, default_value = "0", value_parser = size)]
    pub cache: u64,
    /// Look at an NVMe controller again and again while it works, rather than have it interrupt
    #[arg(long)]
    pub poll: bool,
}

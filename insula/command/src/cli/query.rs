//! Options of the commands that show nodes.

use clap::Args;
use insula_driver::name::Name;

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Also list nodes that stopped without failure; crashed ones are always listed
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The nodes
    #[arg(required = true, value_name = "NODE")]
    pub(crate) names: Vec<Name>,
    /// Accepted for uniformity: the output is always JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `insula stats`.
#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// The nodes; by default all
    #[arg(value_name = "NODE")]
    pub(crate) names: Vec<Name>,
    /// Print JSON: by core, and by system call
    #[arg(long, conflicts_with = "prometheus")]
    pub(crate) json: bool,
    /// Print in Prometheus' text format
    #[arg(long)]
    pub(crate) prometheus: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Seconds between updates
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) interval: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The node
    #[arg(value_name = "NODE")]
    pub(crate) name: Name,
    /// Follow the log until the node stops
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last COUNT records
    #[arg(long, value_name = "COUNT")]
    pub(crate) tail: Option<usize>,
    /// Print one JSON object per record
    #[arg(long)]
    pub(crate) json: bool,
}

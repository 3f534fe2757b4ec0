//! Options of the commands that show nodes.

use clap::Args;
use insula::name::Name;

#[derive(Debug, Args)]
pub(in crate::command) struct Ps {
    /// Also list nodes that stopped without failure; crashed ones are always listed
    #[arg(short, long)]
    pub(in crate::command) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(in crate::command) json: bool,
}

#[derive(Debug, Args)]
pub(in crate::command) struct Inspect {
    /// The nodes
    #[arg(required = true, value_name = "NODE")]
    pub(in crate::command) names: Vec<Name>,
    /// Accepted for uniformity: the output is always JSON
    #[arg(long)]
    pub(in crate::command) json: bool,
}

/// Options of `insula stats`.
#[derive(Debug, Args)]
pub(in crate::command) struct Stats {
    /// The nodes; by default all
    #[arg(value_name = "NODE")]
    pub(in crate::command) names: Vec<Name>,
    /// Print JSON: by core, and by system call
    #[arg(long, conflicts_with = "prometheus")]
    pub(in crate::command) json: bool,
    /// Print in Prometheus' text format
    #[arg(long)]
    pub(in crate::command) prometheus: bool,
}

#[derive(Debug, Args)]
pub(in crate::command) struct Top {
    /// Seconds between updates
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(in crate::command) interval: u32,
}

#[derive(Debug, Args)]
pub(in crate::command) struct Logs {
    /// The node
    #[arg(value_name = "NODE")]
    pub(in crate::command) name: Name,
    /// Follow the log until the node stops
    #[arg(short, long)]
    pub(in crate::command) follow: bool,
    /// Only the last COUNT records
    #[arg(long, value_name = "COUNT")]
    pub(in crate::command) tail: Option<usize>,
    /// Print one JSON object per record
    #[arg(long)]
    pub(in crate::command) json: bool,
}

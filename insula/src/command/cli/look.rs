//! Looking at nodes.

use clap::Args;
use insula::name::Name;

#[derive(Debug, Args)]
pub(in crate::command) struct Ps {
    /// Those that have ended in order as well; crashed ones are always listed
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

/// What nodes have counted.
#[derive(Debug, Args)]
pub(in crate::command) struct Stats {
    /// The nodes; all if none is named
    #[arg(value_name = "NODE")]
    pub(in crate::command) names: Vec<Name>,
    /// Print JSON: by core, and by system call
    #[arg(long, conflicts_with = "prometheus")]
    pub(in crate::command) json: bool,
    /// Print it as Prometheus reads it
    #[arg(long)]
    pub(in crate::command) prometheus: bool,
}

#[derive(Debug, Args)]
pub(in crate::command) struct Top {
    /// How often to look
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(in crate::command) interval: u32,
}

#[derive(Debug, Args)]
pub(in crate::command) struct Logs {
    /// The node
    #[arg(value_name = "NODE")]
    pub(in crate::command) name: Name,
    /// Go on as it logs more, until it stops
    #[arg(short, long)]
    pub(in crate::command) follow: bool,
    /// Only the last so many records
    #[arg(long, value_name = "COUNT")]
    pub(in crate::command) tail: Option<usize>,
    /// Print one JSON object per record
    #[arg(long)]
    pub(in crate::command) json: bool,
}

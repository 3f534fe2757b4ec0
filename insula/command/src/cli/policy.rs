//! Options of `insula policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use insula_driver::name::Name;

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Move programs as the policies want it, until this command is ended
    Run {
        #[command(flatten)]
        files: PolicyFiles,
        /// Move nothing, but tell each decision and its reason
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the load that the policies look at, each second: a trace for `simulate`
    Record {
        #[command(flatten)]
        files: PolicyFiles,
    },
    /// Play a recorded load: what the policies would have done, and what had been best
    Simulate(Simulate),
}

/// Which policies.
#[derive(Debug, Args)]
pub(crate) struct PolicyFiles {
    /// File, or folder with *.toml; may be given several times [default: insula.toml]
    #[arg(short, long, value_name = "PATH")]
    pub(crate) file: Vec<PathBuf>,
    /// The policies; by default all of the files
    #[arg(value_name = "POLICY")]
    pub(crate) policies: Vec<Name>,
    /// Print a line of JSON for each decision or measurement
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// The trace that `record` has printed
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Milliseconds for which a move stops a program, as `insula move` tells
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    pub(crate) stopped_ms: f64,
    #[command(flatten)]
    pub(crate) files: PolicyFiles,
}

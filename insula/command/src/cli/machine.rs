//! Options of `insula machine`.

use clap::{Args, Subcommand};
use insula_base::units::CpuList;
use insula_node::memory::MemorySpec;
use insula_node::spec::{MEMORY, cpu_count};

#[derive(Debug, Subcommand)]
pub(crate) enum Machine {
    /// Check whether this machine can host nodes. Exit status 0 if it can, 1 if not
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show cores, memory and devices, and which node has them
    Info {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Reserve cores and memory in the pool, so that starting a node need not wait for them
    Reserve(Reserve),
    /// Return to the base what is reserved and not in use
    Release,
}

#[derive(Debug, Args)]
#[group(id = "what", multiple = true, required = true)]
pub(crate) struct Reserve {
    /// Number of cores
    #[arg(long, value_name = "COUNT", conflicts_with = "cpu_list", value_parser = cpu_count())]
    pub(crate) cpus: Option<u32>,
    /// Cores by number, such as 2,4-6
    #[arg(long, value_name = "LIST")]
    pub(crate) cpu_list: Option<CpuList>,
    /// Amount of memory, and where
    #[arg(long, value_name = MEMORY)]
    pub(crate) memory: Option<MemorySpec>,
}

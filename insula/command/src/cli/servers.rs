//! Options of `insula servers`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use insula_base::units::CpuList;
use insula_driver::name::Name;
use insula_servers::Place;

#[derive(Debug, Subcommand)]
pub(crate) enum Servers {
    /// List servers, where they run, and what they have to do
    Ls {
        /// The nodes; by default all of the lightweight kernel
        #[arg(value_name = "NODE")]
        names: Vec<Name>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Start a server, and start it again whenever it has ended or its node was restarted
    Start(ServerStart),
    /// Put a server on other cores; what it serves is not disturbed
    #[command(visible_alias = "place")]
    Move {
        #[command(flatten)]
        server: Server,
        /// The cores, by the node's own numbers, such as 1 or 2-3
        #[arg(value_name = "CORES")]
        cpus: CpuList,
    },
    /// End a server that `insula servers start` has started, so that it starts again
    Restart(Server),
    /// End a server that `insula servers start` has started, for good
    Stop(Server),
    /// Print the last of what a server has printed that `insula servers start` has started
    Logs(Server),
    /// What this program does on a node itself
    #[command(hide = true)]
    Here {
        #[command(subcommand)]
        command: Here,
    },
    /// Be the process that keeps a server running
    #[command(hide = true)]
    Supervise {
        /// Id of the node
        #[arg(value_name = "ID")]
        node_id: u32,
        /// The server
        name: Name,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The node
    #[arg(value_name = "NODE")]
    pub(crate) node: Name,
    /// The server: the name of its endpoint
    #[arg(value_name = "SERVER")]
    pub(crate) name: Name,
}

#[derive(Debug, Args)]
pub(crate) struct ServerStart {
    #[command(flatten)]
    pub(crate) server: Server,
    /// Cores on which it runs, by the node's own numbers, such as 1 or 2-3; by default all
    #[arg(long, value_name = "CORES")]
    pub(crate) cpus: Option<CpuList>,
    /// Who chooses the core
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub(crate) place: Place,
    /// The program, which creates an endpoint of that name, and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub(crate) words: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Here {
    /// List endpoints, as JSON
    Ls,
    /// The same once a second, in a line each time
    Watch,
    /// Put a server on cores
    Place {
        /// The server
        name: String,
        /// The cores
        cpus: CpuList,
        /// Leave its shards where they are
        #[arg(long)]
        alone: bool,
    },
    /// Become a program on cores
    Exec {
        /// The cores
        cpus: CpuList,
        /// The program, and its arguments
        #[arg(required = true, last = true)]
        words: Vec<OsString>,
    },
}

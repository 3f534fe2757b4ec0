//! Options of `insula network`.

use clap::{Args, Subcommand};
use insula_driver::name::Name;
use insula_node::attachment::Subnet;

#[derive(Debug, Subcommand)]
pub(crate) enum Network {
    /// Create a network with a name, for `insula run --network NAME`. It outlasts a reboot of this system
    Create(NetworkCreate),
    /// List networks and the nodes on them
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show everything known about networks, as JSON
    Inspect {
        /// The networks
        #[arg(required = true, value_name = "NETWORK")]
        names: Vec<Name>,
        /// Accepted for uniformity: the output is always JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove networks on which there is no node
    Rm {
        /// The networks
        #[arg(required = true, value_name = "NETWORK")]
        names: Vec<Name>,
    },
    /// Remove all networks on which there is no node, and print their names
    Prune,
}

#[derive(Debug, Args)]
pub(crate) struct NetworkCreate {
    /// Its name
    pub(crate) name: Name,
    /// Private addresses of a prefix of 16 bits, such as 10.200.0.0/16; chosen from 10.79.0.0/16 to
    /// 10.109.0.0/16 if not given
    #[arg(long, value_name = "CIDR")]
    pub(crate) subnet: Option<Subnet>,
    /// Without a way to other hosts, and from them
    #[arg(long)]
    pub(crate) internal: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

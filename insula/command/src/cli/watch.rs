//! Options of `insula watch`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use insula_driver::name::{Name, NameError};
use insula_node::BASE;
use insula_rules::Reaction;

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The node; or `base` for the kernel of this system
    #[arg(value_name = "NODE")]
    pub(crate) target: WatchTarget,
    /// Be the watcher of a node's supervisor: the node's descriptor is the standard input
    #[arg(long, hide = true)]
    pub(crate) here: bool,
    /// File with rules, in TOML: thresholds, exceptions, what is not looked for
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// What is done about a kind of finding besides printing it: report (nothing), dump,
    /// repair, stop or restart. May be given several times
    #[arg(long, value_name = "FINDING=ACTION")]
    pub(crate) on: Vec<Reaction>,
    /// The kernel's file, to compare its code with; by default the one that it was started from
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,
    /// Folder with files of modules, to compare their code with, besides /lib/modules/RELEASE of the
    /// base and of a node's root
    #[arg(long, value_name = "FOLDER")]
    pub(crate) modules: Option<PathBuf>,
    /// Look once, which shows nothing that takes time to see, such as a hang. Exit status 1 if there
    /// is a finding
    #[arg(long)]
    pub(crate) once: bool,
    /// Undo the last repair of the node, in its present run, instead of watching it
    #[arg(long, conflicts_with_all = ["once", "on", "rules", "kernel", "modules", "json"])]
    pub(crate) undo: bool,
    /// Print a line of JSON for each event
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WatchTarget {
    /// The kernel of this system.
    Base,
    /// A node.
    Node(Name),
}

impl FromStr for WatchTarget {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            BASE => Ok(Self::Base),
            name => name.parse().map(Self::Node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_is_no_node() {
        assert_eq!("base".parse(), Ok(WatchTarget::Base));
        let web = WatchTarget::Node("web".parse().unwrap());
        assert_eq!("web".parse(), Ok(web));
        assert!("-".parse::<WatchTarget>().is_err());
    }
}

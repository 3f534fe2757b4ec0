//! Options of the commands that make a node, and of `insula attach`.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use insula_driver::name::Name;
use insula_exec::agent::{DETACH_KEYS, DetachKeys};
use insula_image::Payload;
use insula_node::NodeSpec;

use super::FilesOptions;

/// A node to make.
#[derive(Debug, Args)]
pub(crate) struct NewNode {
    #[command(flatten)]
    pub(crate) spec: NodeSpec,
    #[command(flatten)]
    pub(crate) files: FilesOptions,
    /// Files with environment variables of the program, a line each; those of --env count more
    #[arg(long, value_name = "FILE", requires = "program")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Form of the kernel that the node starts from
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layout: Payload,
    /// Name of the node; generated if not given
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// Remove the node and its log when it has stopped, unless it failed; implied for a program with
    /// the image `lwk`
    #[arg(long)]
    pub(crate) rm: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) node: NewNode,
    /// Return when the node is started, also if its program has -i or -t
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Keys that detach from the program's terminal; empty to disable
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: DetachKeys,
    /// Print how long each step of the start took
    #[arg(long)]
    pub(crate) timing: bool,
    /// Print JSON, timing included
    #[arg(long)]
    pub(crate) json: bool,
}

impl Run {
    /// Whether the command attaches to the node's program.
    pub(crate) fn attaches(&self) -> bool {
        let has_user = self.node.spec.interactive || self.node.spec.tty;
        has_user && !(self.detach || self.json || self.timing)
    }
}

/// Options of `insula attach`.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The node or container
    #[arg(value_name = "NODE|CONTAINER")]
    pub(crate) name: Name,
    /// Keys that detach from the terminal; empty to disable
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: DetachKeys,
    /// Do not send this command's standard input
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// Pass signals on to the program; without a terminal also Ctrl-C
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub(crate) sig_proxy: bool,
}

impl Attach {
    /// Attaches to the program of a node that was just started.
    pub(crate) fn to_new(name: Name, detach_keys: DetachKeys) -> Self {
        Self {
            name,
            detach_keys,
            no_stdin: false,
            sig_proxy: true,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) node: NewNode,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

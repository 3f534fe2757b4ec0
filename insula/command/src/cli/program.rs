//! Programs and containers: starting, restoring and moving them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use insula_driver::name::Name;
use insula_exec::agent::{DETACH_KEYS, DetachKeys};
use insula_exec::container::PreCopy;
use insula_exec::program::{self, Mount};
use insula_node::attachment::Publish;

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The node, or a container that the program joins; with --container also `base`
    #[arg(value_name = "NODE")]
    pub(crate) name: Name,
    /// Program, by its path or by a name to be found in PATH, and its arguments; a -- may precede it
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "PROGRAM")]
    pub(crate) words: Vec<OsString>,
    /// Run it as a container of this name in a Linux node or on the base: in namespaces of its own, with an
    /// address of its own. Its output is kept as its log
    #[arg(long, value_name = "NAME", conflicts_with_all = ["interactive", "tty"])]
    pub(crate) container: Option<Name>,
    /// On the base: folder that is its root, `/` by default. Nodes with the same --rootfs can take it
    #[arg(long, value_name = "FOLDER", requires = "container")]
    pub(crate) rootfs: Option<PathBuf>,
    /// Ports of this system to forward to ports of the container, as 8080:80 or 53:53/udp; they go with it
    #[arg(
        short,
        long,
        value_name = "[ADDRESS:]PORT[:CONTAINER-PORT][/udp]",
        requires = "container"
    )]
    pub(crate) publish: Vec<Publish>,
    /// Return as soon as it is started, without its output: a container's is its log's, another program's in a
    /// Linux node the node's log's
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Pass this command's standard input to a program in a Linux node
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Allocate a terminal for a program in a Linux node
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Keys that detach from that terminal; empty to disable
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(crate) detach_keys: DetachKeys,
    /// User of a program in a Linux node or a container, by name or number: root, if not given
    #[arg(
        short,
        long,
        value_name = "USER[:GROUP[,GROUP]...]",
        conflicts_with = "container"
    )]
    pub(crate) user: Option<String>,
    /// Set an environment variable of the program
    #[arg(short, long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Working directory of the program
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) workdir: Option<OsString>,
    /// Polls for a system call of the program before the proxy sleeps and frees the base's core
    #[arg(long, value_name = "TIMES", default_value_t = program::POLLS)]
    pub(crate) polls: u64,
    /// On a node of the lightweight kernel, have the files of this file server below this folder
    #[arg(long = "mount", value_name = "FOLDER=SERVER", value_parser = mount)]
    pub(crate) mounts: Vec<Mount>,
    /// On a node of the lightweight kernel, have the sockets of this network server in place of this system's
    #[arg(long, value_name = "SERVER", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) net: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The node, or `base`; on a node of the lightweight kernel its processes go on, as after a move there
    #[arg(value_name = "NODE")]
    pub(crate) node: Name,
    /// The folder with its images
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) import: PathBuf,
    /// On the base: folder that is its root, `/` by default
    #[arg(long, value_name = "FOLDER")]
    pub(crate) rootfs: Option<PathBuf>,
    /// Its name, if not that in the folder
    #[arg(short, long)]
    pub(crate) name: Option<Name>,
    /// Ports of this system to forward to ports of it, instead of those in the folder
    #[arg(short, long, value_name = "[ADDRESS:]PORT[:CONTAINER-PORT][/udp]")]
    pub(crate) publish: Vec<Publish>,
    /// Restore it with its TCP connections closed
    #[arg(long)]
    pub(crate) tcp_close: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Move {
    /// Id of the process, or name of the container
    #[arg(value_name = "PID|CONTAINER")]
    pub(crate) what: Movable,
    /// The node; `base` for a container of a Linux node, or a process that goes back
    #[arg(value_name = "NODE")]
    pub(crate) name: Name,
    /// Only tell whether it can be moved, and why not
    #[arg(long)]
    pub(crate) check: bool,
    /// Copy a container's memory first, while it runs: for much of it, it stands still for less time, and
    /// the move as a whole takes more [default: from 32 MiB on]
    #[arg(long, conflicts_with = "check")]
    pub(crate) pre_copy: bool,
    /// Copy all of its memory while it stands still
    #[arg(long, conflicts_with_all = ["check", "pre_copy"])]
    pub(crate) no_pre_copy: bool,
}

impl Move {
    /// When a container's memory is copied.
    pub(crate) fn pre_copy(&self) -> PreCopy {
        match (self.pre_copy, self.no_pre_copy) {
            (true, _) => PreCopy::Always,
            (_, true) => PreCopy::Never,
            _ => PreCopy::Auto,
        }
    }
}

/// What can be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Movable {
    /// A process of this system, by its id.
    Process(i32),
    /// A container.
    Container(Name),
}

impl FromStr for Movable {
    type Err = &'static str;

    /// What consists of digits is an id.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse::<i32>() {
            Ok(pid) if pid > 0 => Ok(Self::Process(pid)),
            Ok(_) => Err("ids of processes are positive"),
            Err(_) => match text.parse() {
                Ok(name) => Ok(Self::Container(name)),
                Err(_) => Err("give the id of a process, or the name of a container"),
            },
        }
    }
}

/// Parses a variable and its value.
fn variable(text: &str) -> Result<(OsString, OsString), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("it has the form NAME=VALUE"),
    }
}

fn mount(text: &str) -> Result<Mount, &'static str> {
    match text.rsplit_once('=') {
        Some((point, server)) if point.starts_with('/') && point != "/" && !server.is_empty() => {
            Ok(Mount {
                point: point.into(),
                server: server.to_owned(),
            })
        }
        _ => Err("it has the form FOLDER=SERVER, with an absolute FOLDER other than /"),
    }
}

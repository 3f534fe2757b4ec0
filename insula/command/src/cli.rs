//! The command line: subcommands, options and their help.

mod compose;
mod image;
mod machine;
mod network;
pub(super) mod operands;
mod policy;
mod postmortem;
mod program;
mod query;
mod run;
mod servers;
mod target;
mod watch;

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use insula_base::units::{Change, Size};
use insula_driver::name::Name;
use insula_exec::agent::{DETACH_KEYS, DetachKeys, Place};

pub(super) use compose::{Down, Projects, Up};
pub(super) use image::{FilesOptions, Image, ImageAdd, ImageBuild};
pub(super) use machine::{Machine, Reserve};
pub(super) use network::{Network, NetworkCreate};
pub(super) use policy::{Policy, PolicyFiles, Simulate};
pub(super) use postmortem::{Backtrace, Debug, Dump, DumpCommand, DumpNode, Postmortem};
pub(super) use program::{Exec, Movable, Move, Restore};
pub(super) use query::{Events, Inspect, Logs, Port, Ps, Stats, Top};
pub(super) use run::{Attach, Create, NewNode, Run};
pub(super) use servers::{Here, ServerStart, Servers};
pub(super) use target::{AllOf, Kill, Nodes, Remove, Stop, Wait};
pub(super) use watch::{Watch, WatchTarget};

use super::completion::Shell;
use super::ps::Filter;

/// Many kernels, one machine: start unmodified Linux kernels natively beside the running one, on
/// cores and memory taken from it.
#[derive(Debug, Parser)]
#[command(name = "insula", version, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

// Deferred: the arguments of the others need not be made to parse one of them.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(super) enum Command {
    /// Check and show the machine, reserve and release its pool
    Machine {
        #[command(subcommand)]
        command: Machine,
    },
    /// Manage resident images: kernels kept in memory, ready to start
    Image {
        #[command(subcommand)]
        command: Image,
    },
    /// Manage networks with names: nodes on one reach each other, and none on another one
    Network {
        #[command(subcommand)]
        command: Network,
    },
    /// Take a snapshot of a node with --isolation vmm: an image from which copies of it are started
    /// by `insula run`, which go on where it is
    Snapshot {
        /// The node, whose image has an agent; it goes on
        #[arg(value_name = "NODE")]
        node: Name,
        /// Name of the image
        name: Name,
    },
    /// Start a node and print its name, or attach to its program
    #[command(override_usage = "insula run [OPTIONS] IMAGE [PROGRAM]...\n       \
                                insula run [OPTIONS] --image IMAGE [-- PROGRAM...]")]
    Run(Box<Run>),
    /// Check a node as `run` does and print its name, without taking anything for it: `insula start` starts it
    #[command(override_usage = "insula create [OPTIONS] IMAGE [PROGRAM]...\n       \
                                insula create [OPTIONS] --image IMAGE [-- PROGRAM...]")]
    Create(Box<Create>),
    /// List nodes, and containers in them
    Ps(Ps),
    /// Run a program in a Linux node, or one of this system on a node of the lightweight kernel
    Exec(Exec),
    /// Move a running process of this system onto a node of the lightweight kernel: its threads go on
    /// there, its files and sockets stay. Or move a container to another Linux node, with its
    /// connections
    Move(Move),
    /// Change the kernel under the containers of a node: start a node of another image beside it, move
    /// them there one by one with their connections, and have it take the old one's name and place. If
    /// anything fails, all is as before
    Upgrade {
        /// The node
        #[arg(value_name = "NODE")]
        name: Name,
        /// Image of the node that takes its place
        #[arg(long, value_name = "IMAGE")]
        image: Name,
        /// Only tell whether it can be upgraded, and what would be done
        #[arg(long)]
        check: bool,
        /// Seconds to wait for the old node to power off before it is killed
        #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
        time: u32,
        /// Print a line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Write a container to a folder, by CRIU: it stops, and goes on by `insula restore`, or by `criu
    /// restore`
    Checkpoint {
        /// The container
        #[arg(value_name = "CONTAINER")]
        name: Name,
        /// The folder, which is made or is empty
        #[arg(short, long, value_name = "FOLDER")]
        export: PathBuf,
        /// Leave it running
        #[arg(short = 'R', long)]
        leave_running: bool,
    },
    /// Restore a container in a Linux node: of a folder that `insula checkpoint` has written, or of
    /// processes without namespaces of their own that `criu dump` has written
    Restore(Restore),
    /// Manage servers of the operating system on nodes of the lightweight kernel: programs that others ask
    /// for files by messages, on the cores that you choose
    Servers {
        #[command(subcommand)]
        command: Servers,
    },
    /// Move programs to nodes and back as the load wants it, by the policies of files
    Policy {
        #[command(subcommand)]
        command: Policy,
    },
    /// Attach to the program that a Linux node was started for: see its output from now on, send it input and
    /// signals, exit with its status. Of a node without a program it is as `console`
    Attach(Attach),
    /// Open a shell in a Linux node on this terminal
    Console {
        /// The node
        #[arg(value_name = "NODE")]
        name: Name,
        /// Keys that detach from the shell; empty to disable
        #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
        detach_keys: DetachKeys,
    },
    /// Copy a file or folder from or to a Linux node, or between two nodes
    Cp {
        /// Source: a path, or NODE:PATH; a folder that ends in /. stands for its content
        #[arg(value_name = "[NODE:]FROM", value_parser = place())]
        from: Place,
        /// Target: a folder to copy into, or the new path
        #[arg(value_name = "[NODE:]TO", value_parser = place())]
        to: Place,
    },
    /// Show counters of nodes since their start
    Stats(Stats),
    /// Show counters of nodes live: system calls a second, call by call
    Top(Top),
    /// Show what happens to nodes: their starts and ends, and what their watchers find
    Events(Events),
    /// Show everything known about nodes or containers, as JSON
    Inspect(Inspect),
    /// Stop nodes: press their power button, and kill those that do not power off in time. Paused
    /// ones are resumed for that. Or stop containers, by SIGTERM and then SIGKILL
    Stop(Stop),
    /// Kill nodes at once: their cores return to the base, their memory is kept. Or send a signal to the
    /// first process of containers
    Kill(Kill),
    /// Wait until nodes have stopped for good, or containers have ended. Prints for each the status of a
    /// container's program; for a node 0 if it has powered off by itself, 137 if it was stopped or
    /// killed, 1 if it has failed
    Wait(Wait),
    /// Pause nodes with --isolation vmm: they execute nothing, and keep all that they have
    Pause(Nodes),
    /// Have paused nodes go on
    #[command(visible_alias = "unpause")]
    Resume(Nodes),
    /// Start nodes that were created, or again those that have stopped, from their images; running ones are
    /// left as they are
    Start(Nodes),
    /// Give a node another name; it keeps its host name
    Rename {
        /// The node
        #[arg(value_name = "NODE")]
        name: Name,
        /// A name that no node and no container has
        #[arg(value_name = "NAME")]
        new: Name,
    },
    /// Start nodes again from their images; running ones are stopped first, as by `stop`
    Restart {
        #[command(flatten)]
        nodes: Nodes,
        /// Seconds to wait for a node to power off before it is killed
        #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
        time: u32,
    },
    /// Add cores or memory to a running node, or remove some
    Update(Update),
    /// Remove stopped nodes: their memory is cleared and returned to the base. Or remove containers
    /// that have ended
    Rm(Remove),
    /// Remove all nodes that have stopped, or were created and not started, and all containers that have ended, and
    /// print their names
    Prune {
        /// Only those that have this: see `insula ps`
        #[arg(long, value_name = "KEY=VALUE")]
        filter: Vec<Filter>,
        /// Accepted for scripts written for podman: nothing is asked
        #[arg(short, long)]
        force: bool,
    },
    /// Show the published ports of a node or container
    Port(Port),
    /// Show the versions of this command, of the module, and of what is installed with them
    Version {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a node's kernel log, read from its memory, or a container's output
    Logs(Logs),
    /// Create and start the images and nodes that files describe, in the order of their
    /// dependencies; unchanged ones are left as they are
    Up(Up),
    /// Stop and remove the nodes of files, or of projects by their names
    Down(Down),
    /// Write a node's memory to a core file for crash or drgn; list and remove such dumps
    Dump(Dump),
    /// Print what survived the end of this system's earlier kernels: logs that the kernel kept, or a watcher
    /// of the base before it reset the machine
    Postmortem(Postmortem),
    /// Print a backtrace of each core of a running node, also of one that hangs
    Backtrace(Backtrace),
    /// Serve a node's memory and registers to gdb
    Debug(Debug),
    /// Watch a kernel from outside: code that was changed, tasks and modules that are hidden, hangs,
    /// lockups, lack of memory. Prints what it finds, until the kernel ends
    Watch(Watch),
    /// Be the process that forwards the published ports of a container
    #[command(hide = true)]
    Publish {
        /// The container
        #[arg(value_name = "CONTAINER")]
        name: Name,
    },
    /// Be a process of a container that insula-oci has created
    #[command(hide = true)]
    Oci {
        #[command(subcommand)]
        part: OciPart,
    },
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// The folder to write them to
        folder: PathBuf,
    },
    /// Start a new supervisor for nodes that have lost theirs: `ps` shows them as unsupervised
    Supervise {
        /// The nodes; by default all
        #[arg(value_name = "NODE")]
        names: Vec<Name>,
        /// Be that supervisor: of the node whose descriptor is the standard input
        #[arg(long, hide = true)]
        here: bool,
    },
}

/// A process of a container of the OCI runtime.
#[derive(Debug, Subcommand)]
pub(super) enum OciPart {
    /// Stand for the container until its process has ended
    Run {
        /// The container's id
        id: String,
    },
    /// Run a further process in it
    Exec {
        /// The container's id
        id: String,
        /// The file that describes the process
        process: PathBuf,
    },
    /// Wait for the end of what stands for it, and remove its node
    Guard {
        /// The container's id
        id: String,
    },
    /// Call its hooks of a list
    Hooks {
        /// The list, as in its configuration
        list: String,
        /// The container's id
        id: String,
    },
    /// Remove what was kept of it
    Forget {
        /// The container's id
        id: String,
    },
}

fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(|text| Place::parse(&text))
}

#[derive(Debug, Args)]
pub(super) struct Update {
    /// Node; its kernel needs insula.ko
    #[arg(value_name = "NODE")]
    pub(super) name: Name,
    /// Cores to add (+1), to remove (-1), or in total; what can be added is limited by run
    /// --max-cpus
    #[arg(long, value_name = "[+|-]COUNT", allow_hyphen_values = true)]
    #[arg(required_unless_present = "memory")]
    pub(super) cpus: Option<Change<u32>>,
    /// Memory to add (+256M), to remove (-256M), or in total
    #[arg(long, value_name = "[+|-]SIZE", allow_hyphen_values = true)]
    pub(super) memory: Option<Change<Size>>,
    /// Print the node's new state as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[cfg(test)]
mod tests {
    use insula_base::units::CpuList;
    use insula_node::cores::CoreRequest;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    fn refused(arguments: &str) -> bool {
        let arguments = std::iter::once("insula").chain(arguments.split(' '));
        Cli::try_parse_from(arguments).is_err_and(|error| error.exit_code() == 2)
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for arguments in [
            "run",
            "run --image a --kernel b",
            "run --image a --cpus 0",
            "run --image a --cpus 257",
            "run --image a --cpus 1 --cpu-list 2",
            "run --image a --cpu-list x",
            "run --image a --memory 3M",
            "run --image a --name -x",
            "run --image a --colour red",
            "create --image a --timing",
            "run --image a --device nvme0",
            "run --image a --force-device",
            "run --image a --restart sometimes",
            "run --image a --on-hang pray",
            "run --initrd a",
            "image add a",
            "image add a --installed 6.1 --kernel b",
            "image add a/b --kernel b",
            "machine reserve",
            "rm",
            "logs",
            "cp web:/x",
            "cp web: x",
            "cp we+b:/x x",
            "update web",
            "update web --cpus some",
            "update web --memory -1Q",
            "dump",
            "dump rm",
            "dump web -o x --max 3",
            "debug web --port 1 --stdio",
            "events --since soon",
            "run --image a --watch nothing",
            "run --image a --watch oops=pray",
            "stop",
            "stop web --all",
            "kill web --signal NOTHING",
            "ps --filter colour=red",
            "port web http",
            "frobnicate",
        ] {
            assert!(refused(arguments), "{arguments}");
        }
    }

    #[test]
    fn a_full_run() {
        let text = "insula run --image deb --name web --cpu-list 3,1 --memory 64M,below=4G \
                    --memory 2M --append -x --timing";
        let Command::Run(run) = Cli::parse_from(text.split_whitespace()).command else {
            panic!("another command");
        };
        assert_eq!(run.node.spec.memory.len(), 2);
        assert_eq!(run.node.spec.append, "-x");
        let cores = CoreRequest::List(CpuList(vec![3, 1]));
        assert_eq!(run.node.spec.cores(), cores);
    }
}

//! What a user can type.

mod look;
mod postmortem;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use insula::agent::{DETACH_KEYS, DetachKeys, Place};
use insula::cores::CoreRequest;
use insula::device::PciAddress;
use insula::image::Payload;
use insula::memory::MemorySpec;
use insula::name::Name;
use insula::policy::{OnHang, Policy, Restart};
use insula::program;
use insula::units::{Change, CpuList, Size};
use insula::virtio::{DiskSpec, Publish};

pub(super) use look::{Inspect, Logs, Ps, Stats, Top};
pub(super) use postmortem::{Backtrace, Debug, Dump, DumpCommand, DumpNode};

use super::completion::Shell;

/// Many kernels, one machine: start unmodified Linux kernels natively beside the running one, on
/// cores and memory taken from it.
#[derive(Debug, Parser)]
#[command(name = "insula", version, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Look at the machine, fill and empty its pool
    Machine {
        #[command(subcommand)]
        command: Machine,
    },
    /// Keep kernels in memory, ready to start
    Image {
        #[command(subcommand)]
        command: Image,
    },
    /// Start a node and print its name
    Run(Run),
    /// List nodes
    Ps(Ps),
    /// Run a program in a Linux node, or one of this system on a node of the lightweight kernel
    Exec(Exec),
    /// A shell in a Linux node, on this terminal
    Console {
        /// The node
        #[arg(value_name = "NODE")]
        name: Name,
        /// What to type to leave the shell; nothing for no such keys
        #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
        detach_keys: DetachKeys,
    },
    /// Copy a file, or a folder with its content, from or to a Linux node, or between two
    Cp {
        /// What: a path, or NODE:PATH; a folder with /. at its end stands for its content
        #[arg(value_name = "[NODE:]FROM", value_parser = place())]
        from: Place,
        /// A folder to put it in, or its own new path
        #[arg(value_name = "[NODE:]TO", value_parser = place())]
        to: Place,
    },
    /// Show what nodes have counted since their start
    Stats(Stats),
    /// Watch nodes: what their programs ask for each second, call by call
    Top(Top),
    /// Show all that is known of nodes, as JSON
    Inspect(Inspect),
    /// Ask nodes to switch themselves off by their power button, and stop those that do not
    Stop {
        /// The nodes
        #[arg(required = true, value_name = "NODE")]
        names: Vec<Name>,
        /// How long a node may take to switch itself off
        #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
        time: u32,
    },
    /// Stop nodes at once: their cores go back to the base, their memory is kept
    Kill {
        /// The nodes
        #[arg(required = true, value_name = "NODE")]
        names: Vec<Name>,
    },
    /// Start nodes again from their images; those that run are stopped first, as by `stop`
    Restart {
        /// The nodes
        #[arg(required = true, value_name = "NODE")]
        names: Vec<Name>,
        /// How long a node may take to switch itself off
        #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
        time: u32,
    },
    /// Give a running node more cores and memory, or take some back
    Update(Update),
    /// Remove stopped nodes: their memory is cleared and goes back to the base
    Rm {
        /// The nodes
        #[arg(required = true, value_name = "NODE")]
        names: Vec<Name>,
        /// Stop them first if they run
        #[arg(short, long)]
        force: bool,
    },
    /// Show a node's kernel log, read from its memory
    Logs(Logs),
    /// Bring up what files describe: images and nodes, in order; what is as described stays untouched
    Up(Up),
    /// Stop and remove the nodes that files, or projects by their names, have brought up
    Down(Down),
    /// Keep a node's memory as a core file for crash or drgn; list and remove those kept
    Dump(Dump),
    /// Make each core of a running node print where it is, also if it hangs
    Backtrace(Backtrace),
    /// Let gdb look at a node's memory and registers
    Debug(Debug),
    /// Print what makes a shell complete this command's words
    Completion {
        /// Which shell
        shell: Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// Where to
        folder: PathBuf,
    },
    /// Give nodes another supervisor that have lost theirs: `ps` shows them as unsupervised
    Supervise {
        /// The nodes; all if none is named
        #[arg(value_name = "NODE")]
        names: Vec<Name>,
        /// Be that supervisor: of the node whose descriptor is the standard input
        #[arg(long, hide = true)]
        here: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Machine {
    /// Can this machine host nodes? Exit status 0 if so, 1 if not
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what there is, what is taken, and by which node
    Info {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take cores and memory ahead of need, so that starts do not pay for taking
    Reserve(Reserve),
    /// Give back what was reserved and is not used
    Release,
}

#[derive(Debug, Args)]
#[group(id = "what", multiple = true, required = true)]
pub(super) struct Reserve {
    /// How many cores
    #[arg(long, value_name = "COUNT", conflicts_with = "cpu_list", value_parser = cpu_count())]
    pub(super) cpus: Option<u32>,
    /// Which cores, such as 2,4-6
    #[arg(long, value_name = "LIST")]
    pub(super) cpu_list: Option<CpuList>,
    /// How much memory
    #[arg(long, value_name = MEMORY)]
    pub(super) memory: Option<MemorySpec>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Image {
    /// Make an image resident: read its files once, keep them in memory
    Add(ImageAdd),
    /// Make an image of an installed kernel for nodes to live in: with an agent and all drivers
    Build(ImageBuild),
    /// List images
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show all that is known of images, as JSON
    Inspect {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<Name>,
        /// Accepted for uniformity: the output is always JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images; nodes started from them go on
    Rm {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<Name>,
    },
}

#[derive(Debug, Args)]
pub(super) struct ImageAdd {
    /// Its name
    pub(super) name: Name,
    #[command(flatten)]
    pub(super) files: FilesOptions,
    /// Take the files of an installed kernel, by its release or the beginning of it
    #[arg(long, value_name = "RELEASE", conflicts_with_all = ["kernel", "initrd"])]
    #[arg(required_unless_present = "kernel")]
    pub(super) installed: Option<String>,
    /// Kernel command line of every node of this image
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    #[arg(hide_default_value = true)]
    pub(super) append: String,
    /// Which form of the kernel to keep
    #[arg(long, value_enum, default_value_t = LayoutOption::Compressed)]
    pub(super) layout: LayoutOption,
    /// Print all that is known of it, as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ImageBuild {
    /// Its name
    pub(super) name: Name,
    /// The release of an installed kernel, or the beginning of it
    #[arg(long, value_name = "RELEASE")]
    pub(super) installed: String,
    /// Where insula.ko and insula_virtio.ko for that kernel are, if not where DKMS puts them
    #[arg(long, value_name = "FOLDER")]
    pub(super) module_folder: Option<PathBuf>,
    /// A folder whose content is put in as well
    #[arg(long, value_name = "FOLDER")]
    pub(super) content: Option<PathBuf>,
    /// Kernel command line of every node of this image
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    #[arg(hide_default_value = true)]
    pub(super) append: String,
    /// Which form of the kernel to keep
    #[arg(long, value_enum, default_value_t = LayoutOption::Compressed)]
    pub(super) layout: LayoutOption,
    /// Print all that is known of it, as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct FilesOptions {
    /// The kernel: a bzImage (such as /boot/vmlinuz-*) or an ELF vmlinux
    #[arg(long, value_name = "FILE")]
    pub(super) kernel: Option<PathBuf>,
    /// The initrd
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub(super) initrd: Option<PathBuf>,
}

/// Which form of a kernel a node is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LayoutOption {
    /// The file as it is; the node unpacks it
    Compressed,
    /// Unpacked: more to copy, nothing to unpack, no address randomisation
    Decompressed,
}

impl From<LayoutOption> for Payload {
    fn from(option: LayoutOption) -> Self {
        match option {
            LayoutOption::Compressed => Self::Compressed,
            LayoutOption::Decompressed => Self::Decompressed,
        }
    }
}

const MEMORY: &str = "SIZE[,numa=N][,below=ADDR][,above=ADDR][,chunk=SIZE]";

/// From one to as many cores as a node can have.
fn cpu_count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=insula_abi::NODE_CPUS_MAX as i64)
}

#[derive(Debug, Args)]
pub(super) struct Run {
    /// The resident image to start
    #[arg(long, value_name = "IMAGE", required_unless_present = "kernel")]
    #[arg(conflicts_with_all = ["kernel", "initrd", "layout"])]
    pub(super) image: Option<Name>,
    #[command(flatten)]
    pub(super) files: FilesOptions,
    /// Which form of the kernel file to give to the node
    #[arg(long, value_enum, default_value_t = LayoutOption::Compressed)]
    pub(super) layout: LayoutOption,
    /// The node's name; one is made up when none is given
    #[arg(long)]
    pub(super) name: Option<Name>,
    /// How many cores
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = cpu_count())]
    #[arg(conflicts_with = "cpu_list")]
    pub(super) cpus: u32,
    /// Which cores, such as 2,4-6; the first boots
    #[arg(long, value_name = "LIST")]
    pub(super) cpu_list: Option<CpuList>,
    /// How many cores it may get later, those it starts with included
    #[arg(long, value_name = "COUNT", value_parser = cpu_count())]
    pub(super) max_cpus: Option<u32>,
    /// How much memory, and where; several add up
    #[arg(long, value_name = MEMORY, default_value = "512M")]
    pub(super) memory: Vec<MemorySpec>,
    /// A PCI function that is to be its own, such as 0000:01:00.0; may be given several times
    #[arg(long = "device", value_name = "ADDRESS")]
    pub(super) devices: Vec<PciAddress>,
    /// Take devices even if the base needs them: its disk, its only network
    #[arg(long, requires = "devices")]
    pub(super) force_device: bool,
    /// What is to be the root of a node of an image with an agent: a folder of this system, a file with
    /// an EROFS image, or a file or block device with an ext4 file system
    #[arg(long, value_name = "PATH")]
    pub(super) rootfs: Option<PathBuf>,
    /// Keep what the node changes there in the node's memory, and forget it with the node
    #[arg(long, requires = "rootfs")]
    pub(super) overlay: bool,
    /// A file or block device of this system that is to be a disk of the node: the first is /dev/vda
    /// there, the next /dev/vdb; `,ro` keeps it from being written to; may be given several times
    #[arg(long = "disk", value_name = "FILE[,ro]")]
    pub(super) disks: Vec<DiskSpec>,
    /// Put a node of an image with an agent on the network of nodes and base
    #[arg(long)]
    pub(super) network: bool,
    /// Its address there; without, it gets one that no node can ask for
    #[arg(long, value_name = "ADDRESS")]
    pub(super) ip: Option<Ipv4Addr>,
    /// Have a TCP port of this system lead to one of the node, as 8080:80; may be given several times
    #[arg(short, long, value_name = "[ADDRESS:]PORT[:NODE-PORT]")]
    pub(super) publish: Vec<Publish>,
    /// The program for which the node is there: when it ends, so does the node. Of an image with an
    /// agent it is logged; of the image `lwk` it is this system's, and the command ends as it does
    #[arg(last = true, value_name = "PROGRAM")]
    pub(super) words: Vec<OsString>,
    /// More for the kernel command line, after the image's
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    #[arg(hide_default_value = true)]
    pub(super) append: String,
    /// Keep a dump of the node's memory if it crashes or is stopped as hanging
    #[arg(long)]
    pub(super) dump_on_crash: bool,
    #[command(flatten)]
    pub(super) policy: PolicyOptions,
    /// Remove it, with its log, when it has ended, unless it failed; of the image `lwk`, a node with a
    /// program is always removed so
    #[arg(long)]
    pub(super) rm: bool,
    /// Print where the time of the start went
    #[arg(long)]
    pub(super) timing: bool,
    /// Print JSON, timing included
    #[arg(long)]
    pub(super) json: bool,
}

/// What becomes of a node when it ends.
#[derive(Debug, Args)]
pub(super) struct PolicyOptions {
    /// When to start it again: no, on-failure[:N] (crashed or hung; at most N times), always
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub(super) restart: Restart,
    /// What to do when its first core takes no interrupts any more
    #[arg(long, value_enum, value_name = "DEED", default_value_t = OnHangOption::Ignore)]
    pub(super) on_hang: OnHangOption,
    /// Let a node that reboots stay stopped
    #[arg(long)]
    pub(super) no_reboot: bool,
}

impl From<PolicyOptions> for Policy {
    fn from(options: PolicyOptions) -> Self {
        Self {
            restart: options.restart,
            on_hang: options.on_hang.into(),
            reboot: !options.no_reboot,
            ..Self::default()
        }
    }
}

/// What to do with a node that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnHangOption {
    /// Show it as unresponsive
    Ignore,
    /// Stop it; whether it is started again is up to --restart
    Stop,
    /// Stop it and start it again
    Restart,
}

impl From<OnHangOption> for OnHang {
    fn from(option: OnHangOption) -> Self {
        match option {
            OnHangOption::Ignore => Self::Ignore,
            OnHangOption::Stop => Self::Stop,
            OnHangOption::Restart => Self::Restart,
        }
    }
}

/// Which cores are asked for.
pub(super) fn core_request(count: u32, list: Option<CpuList>) -> CoreRequest {
    list.map_or(CoreRequest::Count(count), CoreRequest::List)
}

#[derive(Debug, Args)]
pub(super) struct Exec {
    /// The node
    #[arg(value_name = "NODE")]
    pub(super) name: Name,
    /// The program, by its path or by a name to be looked for in PATH, and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub(super) words: Vec<OsString>,
    /// Give this command's standard input to a program in a Linux node
    #[arg(short, long)]
    pub(super) interactive: bool,
    /// Give a terminal to a program in a Linux node
    #[arg(short, long)]
    pub(super) tty: bool,
    /// What to type on that terminal to leave the program; nothing for no such keys
    #[arg(long, value_name = "KEYS", default_value = DETACH_KEYS)]
    pub(super) detach_keys: DetachKeys,
    /// Set a variable in the program's environment
    #[arg(short, long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Where the program begins
    #[arg(short, long, value_name = "FOLDER")]
    pub(super) workdir: Option<OsString>,
    /// How often to look for a system call of the program before the base's core is left to others
    #[arg(long, value_name = "TIMES", default_value_t = program::POLLS)]
    pub(super) polls: u64,
}

/// A variable and its value.
fn variable(text: &str) -> Result<(OsString, OsString), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("it has the form NAME=VALUE"),
    }
}

fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(|text| Place::parse(&text))
}

#[derive(Debug, Args)]
pub(super) struct Update {
    /// The node; its kernel needs insula.ko
    #[arg(value_name = "NODE")]
    pub(super) name: Name,
    /// How many cores more (+1), fewer (-1), or in all; it needs room for them: run --max-cpus
    #[arg(long, value_name = "[+|-]COUNT", allow_hyphen_values = true)]
    #[arg(required_unless_present = "memory")]
    pub(super) cpus: Option<Change<u32>>,
    /// How much memory more (+256M), less (-256M), or in all
    #[arg(long, value_name = "[+|-]SIZE", allow_hyphen_values = true)]
    pub(super) memory: Option<Change<Size>>,
    /// Print what the node is then, as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Which projects, and how long their nodes have.
#[derive(Debug, Args)]
pub(super) struct Projects {
    /// A file, or a folder with *.toml; may be given several times [default: insula.toml]
    #[arg(short, long, value_name = "PATH")]
    pub(super) file: Vec<PathBuf>,
    /// How long a node may take to switch itself off
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    pub(super) time: u32,
    /// Print what was done as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Up {
    #[command(flatten)]
    pub(super) projects: Projects,
    /// Another name for the project than the file has
    #[arg(short, long, value_name = "NAME")]
    pub(super) project: Option<Name>,
    /// Only check, and show what would be done
    #[arg(long, visible_alias = "check")]
    pub(super) dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct Down {
    #[command(flatten)]
    pub(super) projects: Projects,
    /// A project by its name, whatever file it has; may be given several times
    #[arg(short, long, value_name = "NAME")]
    pub(super) project: Vec<Name>,
    /// Remove the images as well that were added for it
    #[arg(long)]
    pub(super) images: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    fn refused(arguments: &str) -> bool {
        let arguments = std::iter::once("insula").chain(arguments.split(' '));
        Cli::try_parse_from(arguments).is_err_and(|error| error.exit_code() == 2)
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
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
        assert_eq!(run.memory.len(), 2);
        assert_eq!(run.append, "-x");
        let request = core_request(run.cpus, run.cpu_list);
        assert_eq!(request, CoreRequest::List(CpuList(vec![3, 1])));
    }
}

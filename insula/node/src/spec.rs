//! What a node is to be: one struct for the options of `insula run`, a table `[nodes.NAME]` of a
//! project's file, and the node's record.
//!
//! An option is a field here, and code where it has its effect. The rest follows from the field:
//! the command's option with its help, the file's key with its JSON Schema and its line in the book,
//! what a node's record keeps for a restart, and that a node of a project is started anew when the
//! key changes. What has its default is left out of records and digests, so a new option restarts no
//! node.
//!
//! Parsing is strict in all three: an unknown key is refused, in a record too. A command that would
//! lose an option does not start the node again.

use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{RangedI64ValueParser, StringValueParser, TypedValueParser};
use insula_abi::NODE_CPUS_MAX;
use insula_base::units::{CpuList, Size};
use insula_driver::name::Name;
use insula_rules::WatchOption;
use serde::{Deserialize, Serialize};

mod check;
mod form;
mod network;
mod ready;

pub use network::NetworkSpec;
pub use ready::Ready;

use crate::attachment::{DiskSpec, Networking, Publish, VolumeSpec};
use crate::cores::CoreRequest;
use crate::device::PciAddress;
use crate::host_name::HostName;
use crate::isolation::Isolation;
use crate::label::Label;
use crate::memory::MemorySpec;
use crate::networks::DEFAULT;
use crate::policy::{OnHang, Policy, Restart};
use crate::shared_core::{CORE_SHARE_MAX, ShareBy};
use crate::variable::Variable;

/// Version of the format. It is increased when a command that knows the earlier one would
/// misunderstand a spec; new options do not need that.
pub const VERSION: u32 = 1;

/// Value name of an amount of memory.
pub const MEMORY: &str = "SIZE[,numa=N][,below=ADDR][,above=ADDR][,chunk=SIZE]";

/// Memory of a node for which none is given.
const MEMORY_DEFAULT: MemorySpec = MemorySpec {
    size: Size(512 << 20),
    numa_node: None,
    below: None,
    above: None,
    chunk: None,
};

/// A node to start.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(extend("required" = ["image"])))]
#[cfg_attr(feature = "schemars", schemars(extend("not" = {"required": ["cpus", "cpu_list"]})))]
#[serde(default, deny_unknown_fields)]
pub struct NodeSpec {
    /// Image to start: `insula image ls` lists the resident ones.
    #[arg(long, value_name = "IMAGE", required_unless_present = "kernel")]
    #[arg(conflicts_with_all = ["kernel", "initrd", "layout"])]
    #[serde(skip_serializing_if = "is_default")]
    pub image: Option<Name>,
    /// Number of cores; 1 by default.
    #[arg(long, value_name = "COUNT", value_parser = cpu_count(), conflicts_with = "cpu_list")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 256)))]
    #[serde(skip_serializing_if = "is_default")]
    pub cpus: Option<u32>,
    /// Cores by number, such as 2,4-6; the first boots.
    #[arg(long, value_name = "LIST")]
    #[serde(skip_serializing_if = "is_default")]
    pub cpu_list: Option<CpuList>,
    /// Maximum number of cores, including those added later.
    #[arg(long, value_name = "COUNT", value_parser = cpu_count())]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 256)))]
    #[serde(skip_serializing_if = "is_default")]
    pub max_cpus: Option<u32>,
    /// Core to share with this system, which keeps it online, or with a confined node; only for a
    /// lightweight kernel, which goes first there.
    #[arg(long, value_name = "CORE", conflicts_with_all = ["cpus", "cpu_list", "max_cpus"])]
    #[serde(skip_serializing_if = "is_default")]
    pub share_core: Option<u32>,
    /// Most of the shared core's time that the node gets, in percent; 90 by default.
    #[arg(long, value_name = "PERCENT", requires = "share_core", value_parser = core_share())]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 99)))]
    #[serde(skip_serializing_if = "is_default")]
    pub core_share: Option<u32>,
    /// How the node's kernel is entered on the shared core: `interrupt`, `nmi` (also while this system
    /// has interrupts off there), or `vmm` (the core is a confined node's, whose monitor does it).
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value_t,
        requires = "share_core",
        hide_possible_values = true
    )]
    #[serde(skip_serializing_if = "is_default")]
    pub share_by: ShareBy,
    /// Amount of memory, and where; several add up; 512M by default.
    #[arg(short, long, value_name = MEMORY, default_value = "512M", hide_default_value = true)]
    #[serde(
        deserialize_with = "form::one_or_many",
        skip_serializing_if = "is_memory_default"
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "form::OneOrMany<MemorySpec>"))]
    pub memory: Vec<MemorySpec>,
    /// Isolation from the rest of the machine: `direct` (the node is trusted to stay in its part) or
    /// `vmm` (a thin monitor on the node's cores holds it there).
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        default_value_t,
        hide_possible_values = true
    )]
    #[serde(skip_serializing_if = "is_default")]
    pub isolation: Isolation,
    /// PCI functions to pass through, such as 0000:01:00.0; one or several.
    #[arg(long, value_name = "ADDRESS")]
    #[serde(
        deserialize_with = "form::one_or_many",
        skip_serializing_if = "is_default"
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "form::OneOrMany<PciAddress>"))]
    pub device: Vec<PciAddress>,
    /// Pass devices through even if the base needs them: its disk, its only network.
    #[arg(long, requires = "device")]
    #[serde(skip_serializing_if = "is_default")]
    pub force_device: bool,
    /// Root file system of a node of an image with an agent: a folder of this system, a file with
    /// an EROFS image, or a file or block device with an ext4 file system.
    #[arg(long, value_name = "PATH")]
    #[serde(skip_serializing_if = "is_default")]
    pub rootfs: Option<PathBuf>,
    /// Keep changes to the root file system in the node's memory only; they are lost with the node.
    #[arg(long, requires = "rootfs")]
    #[serde(skip_serializing_if = "is_default")]
    pub overlay: bool,
    /// Have the folder that is the root, and leave it to containers of an OCI runtime to mount it: so a snapshot can be
    /// taken, of whose copies each has a folder of its own.
    #[arg(long, requires = "rootfs", conflicts_with = "overlay")]
    #[serde(skip_serializing_if = "is_default")]
    pub unmounted_root: bool,
    /// Files or block devices of this system to attach as disks; one or several: the first is
    /// /dev/vda in the node, the next /dev/vdb; `,ro` makes one read-only.
    #[arg(long, value_name = "FILE[,ro]")]
    #[serde(
        deserialize_with = "form::one_or_many",
        skip_serializing_if = "is_default"
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "form::OneOrMany<DiskSpec>"))]
    pub disk: Vec<DiskSpec>,
    /// Folders of this system to have in a node of an image with an agent, beside its root; one or several;
    /// `:ro` makes one read-only.
    #[arg(short, long, value_name = "FOLDER:MOUNT-POINT[:ro]")]
    #[serde(
        deserialize_with = "form::one_or_many",
        skip_serializing_if = "is_default"
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "form::OneOrMany<VolumeSpec>"))]
    pub volume: Vec<VolumeSpec>,
    /// Host name of a Linux node; its name by default. Where its root has a first process of its own, that may
    /// choose another one.
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: Option<HostName>,
    /// Connect a node of an image with an agent to the network of nodes and base, or to the one of this name:
    /// `insula network ls` lists them.
    #[arg(long, value_name = "NETWORK", num_args = 0..=1)]
    #[arg(default_value = "", default_missing_value = DEFAULT, hide_default_value = true, value_parser = network())]
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schemars", schemars(with = "form::BoolOrName"))]
    pub network: NetworkSpec,
    /// Its IP address there; assigned by default.
    #[arg(long, value_name = "ADDRESS")]
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<form::Address>"))]
    pub ip: Option<Ipv4Addr>,
    /// Have this system look for packets of the node for so many microseconds before it waits for a notification: they
    /// arrive sooner, for the time of one of its cores while there is traffic.
    #[arg(long, value_name = "MICROSECONDS")]
    #[serde(skip_serializing_if = "is_default")]
    pub network_poll_us: Option<u32>,
    /// Ports of this system to forward to ports of the node, as 8080:80 or 53:53/udp; one or several.
    #[arg(short, long, value_name = "[ADDRESS:]PORT[:NODE-PORT][/udp]")]
    #[serde(
        deserialize_with = "form::one_or_many",
        skip_serializing_if = "is_default"
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "form::OneOrMany<Publish>"))]
    pub publish: Vec<Publish>,
    /// Program to run, and its arguments: when it exits, the node stops. In a node of an image with
    /// an agent its output is logged. With the image `lwk` it is a program of this system, and the
    /// command `run` exits with its status.
    #[arg(last = true, value_name = "PROGRAM")]
    #[serde(with = "form::words", skip_serializing_if = "is_default")]
    #[cfg_attr(
        feature = "schemars",
        schemars(with = "Option<Vec<String>>", length(min = 1))
    )]
    pub program: Option<Vec<OsString>>,
    /// Environment variables of that program; one or several.
    #[arg(short, long, value_name = "NAME=VALUE", requires = "program")]
    #[serde(
        deserialize_with = "form::one_or_many",
        skip_serializing_if = "is_default"
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "form::OneOrMany<Variable>"))]
    pub env: Vec<Variable>,
    /// Working directory of that program; in a node of an image with an agent `/` by default.
    #[arg(short, long, value_name = "FOLDER", requires = "program")]
    #[serde(skip_serializing_if = "is_default")]
    pub workdir: Option<PathBuf>,
    /// Give that program a standard input, which stays open: `insula attach` sends it what it reads. Only in a
    /// node of an image with an agent.
    #[arg(short, long, requires = "program")]
    #[serde(skip_serializing_if = "is_default")]
    pub interactive: bool,
    /// Give that program a terminal, for `insula attach`. Only in a node of an image with an agent.
    #[arg(short, long, requires = "program")]
    #[serde(skip_serializing_if = "is_default")]
    pub tty: bool,
    /// Let a node of an image with an agent keep its clock alone; else it follows this system's, unless a program
    /// there keeps it.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_default")]
    pub no_clock_sync: bool,
    /// Text to append to the image's kernel command line.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    #[arg(allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "is_default")]
    pub append: String,
    /// Let programs of the node that have CAP_SYS_RAWIO use I/O ports, by ioperm(2), as a watcher does that
    /// resets the machine; only on a lightweight kernel.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_default")]
    pub allow_ioperm: bool,
    /// Labels by which it can be found, as `insula ps --filter label=tier=front`; one or several.
    #[arg(short, long, value_name = "KEY[=VALUE]")]
    #[serde(
        deserialize_with = "form::one_or_many",
        skip_serializing_if = "is_default"
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "form::OneOrMany<Label>"))]
    pub label: Vec<Label>,
    /// Keep a dump of the node's memory if it crashes, is stopped as hanging or violates its isolation.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_default")]
    pub dump_on_crash: bool,
    /// Restart policy: `no`, `on-failure[:N]` (crashed or hung; at most N times), `always`.
    #[arg(long, value_name = "POLICY", default_value_t)]
    #[serde(skip_serializing_if = "is_default")]
    pub restart: Restart,
    /// Action when the first core stops handling interrupts.
    #[arg(long, value_enum, value_name = "ACTION", default_value_t)]
    #[serde(skip_serializing_if = "is_default")]
    pub on_hang: OnHang,
    /// Watch the node from outside for this kind of finding, such as `task-hung`, or for `all`: it is told
    /// in the journal and in `insula events`, and `=ACTION` says what else is done: `dump`, `repair`, `stop`
    /// or `restart`; one or several.
    #[arg(long, value_name = "FINDING[=ACTION]")]
    #[serde(
        deserialize_with = "form::one_or_many",
        skip_serializing_if = "is_default"
    )]
    #[cfg_attr(feature = "schemars", schemars(with = "form::OneOrMany<WatchOption>"))]
    pub watch: Vec<WatchOption>,
    /// File with rules for that: thresholds, exceptions; without --watch, the node is watched for all that
    /// they do not ignore.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "is_default")]
    pub watch_rules: Option<PathBuf>,
    /// Do not start the node again when it reboots.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_default")]
    pub no_reboot: bool,
    /// Nodes of this file that must be ready before this one is started.
    #[arg(skip)]
    #[serde(skip_serializing_if = "is_default")]
    pub after: Vec<Name>,
    /// What marks it as ready; by default it is as soon as its kernel runs.
    #[arg(skip)]
    #[serde(skip_serializing_if = "is_default")]
    pub ready: Option<Ready>,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_memory_default(memory: &[MemorySpec]) -> bool {
    memory == [MEMORY_DEFAULT]
}

/// Parser of a network, of which an empty text is none.
fn network() -> impl TypedValueParser<Value = NetworkSpec> {
    StringValueParser::new().try_map(|text| match text.as_str() {
        "" => Ok(NetworkSpec::None),
        name => name.parse(),
    })
}

/// Parser of a number of cores: from 1 to the most that a node can have.
#[must_use]
pub fn cpu_count() -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(1..=NODE_CPUS_MAX as i64)
}

/// Parser of a share of a core's time, in percent.
#[must_use]
pub fn core_share() -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(1..=CORE_SHARE_MAX.into())
}

impl Default for NodeSpec {
    fn default() -> Self {
        Self {
            image: None,
            cpus: None,
            cpu_list: None,
            max_cpus: None,
            share_core: None,
            core_share: None,
            share_by: ShareBy::default(),
            memory: vec![MEMORY_DEFAULT],
            isolation: Isolation::default(),
            device: Vec::new(),
            force_device: false,
            rootfs: None,
            overlay: false,
            unmounted_root: false,
            disk: Vec::new(),
            volume: Vec::new(),
            hostname: None,
            network: NetworkSpec::None,
            ip: None,
            network_poll_us: None,
            publish: Vec::new(),
            program: None,
            env: Vec::new(),
            workdir: None,
            interactive: false,
            tty: false,
            no_clock_sync: false,
            append: String::new(),
            allow_ioperm: false,
            label: Vec::new(),
            dump_on_crash: false,
            restart: Restart::default(),
            on_hang: OnHang::default(),
            watch: Vec::new(),
            watch_rules: None,
            no_reboot: false,
            after: Vec::new(),
            ready: None,
        }
    }
}

impl NodeSpec {
    /// The cores that it starts with.
    #[must_use]
    pub fn cores(&self) -> CoreRequest {
        match (&self.cpu_list, self.share_core) {
            (Some(list), _) => CoreRequest::List(list.clone()),
            (None, Some(cpu)) => CoreRequest::List(CpuList(vec![cpu])),
            (None, None) => CoreRequest::Count(self.cpus.unwrap_or(1)),
        }
    }

    /// The NUMA node that its cores should be on: that of its memory.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        self.memory.iter().find_map(|spec| spec.numa_node)
    }

    /// Size of its memory in bytes.
    #[must_use]
    pub fn memory_size(&self) -> u64 {
        let sizes = self.memory.iter().map(|spec| spec.size.0);
        sizes.fold(0, u64::saturating_add)
    }

    /// Its network, if it has one: an address or a port means that it does. One with a name is not looked up.
    #[must_use]
    pub fn networking(&self) -> Option<Networking> {
        let is_on = self.network.is_some() || self.ip.is_some() || !self.publish.is_empty();
        is_on.then(|| Networking {
            publish: self.publish.clone(),
            address: self.ip,
            poll_us: self.network_poll_us.unwrap_or(0),
            named: None,
        })
    }

    /// Its restart policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            restart: self.restart,
            on_hang: self.on_hang,
            reboot: !self.no_reboot,
            ..Policy::default()
        }
    }

    /// Its program and arguments; empty if it runs none.
    pub fn words(&self) -> impl Iterator<Item = &OsStr> {
        self.program.iter().flatten().map(OsString::as_os_str)
    }

    /// Makes its paths absolute: relative ones start at `folder`.
    pub fn resolve(&mut self, folder: &Path) {
        for path in self
            .rootfs
            .iter_mut()
            .chain(self.disk.iter_mut().map(|disk| &mut disk.path))
            .chain(self.volume.iter_mut().map(|volume| &mut volume.source))
            .chain(&mut self.watch_rules)
        {
            *path = folder.join(&path);
        }
    }

    /// The node alone, written in one way: equal nodes have equal ones. When it is started, after
    /// which others, is no part of it.
    #[must_use]
    pub fn normalized(&self) -> Self {
        Self {
            cpus: self.cpus.filter(|&count| count != 1),
            network: match self.networking() {
                Some(_) if !self.network.is_some() => NetworkSpec::Default,
                _ => self.network.clone(),
            },
            append: self.append.trim().to_owned(),
            after: Vec::new(),
            ready: None,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests;

//! A node that shares its core with the base, or with a confined node.

use clap::ValueEnum;
use insula_abi as abi;
use insula_abi::{Cpu, CpuOwner};
use insula_base::error::Error;
use insula_base::topology::Topology;
use insula_driver::{CallError, Driver, Memory, Node, name::Name};
use insula_image::Bootable;
use kimage::Format;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cores::Cores;
use crate::spec::NodeSpec;
use crate::view::Handle;

/// Most of a shared core's time that a node can get, in percent: the base needs some.
pub(crate) const CORE_SHARE_MAX: u32 = 99;
/// What it gets if nothing is said.
const CORE_SHARE_DEFAULT: u32 = 90;

/// How a node's kernel is entered on a core that it shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ShareBy {
    /// By interrupts: not while the base has them off.
    #[default]
    Interrupt,
    /// By non-maskable interrupts: then, too.
    Nmi,
    /// By the monitor of the confined node that has the core.
    Vmm,
}

impl ShareBy {
    const fn to_abi(self) -> abi::ShareBy {
        match self {
            Self::Interrupt => abi::ShareBy::INTERRUPT,
            Self::Nmi => abi::ShareBy::NMI,
            Self::Vmm => abi::ShareBy::VMM,
        }
    }
}

/// The core that a node is to share with a confined node, if it is.
fn of_confined(spec: &NodeSpec) -> Option<u32> {
    spec.share_core.filter(|_| spec.share_by == ShareBy::Vmm)
}

/// The cores that a node can have: that of the node with which it is to share one, too.
pub(crate) fn available(spec: &NodeSpec, topology: &Topology, cpus: &[Cpu]) -> Cores {
    let mut available = Cores::new(topology, cpus);
    let is_nodes = |core: &u32| is_owned(cpus, *core, CpuOwner::NODE);
    if let Some(core) = of_confined(spec).filter(is_nodes) {
        available.mark_free(&[core]);
    }
    available
}

fn is_owned(cpus: &[Cpu], core: u32, owner: CpuOwner) -> bool {
    cpus.iter().any(|cpu| cpu.cpu == core && cpu.owner == owner)
}

/// Checks that a node can share the core that it is to share, before anything is taken.
///
/// # Errors
/// Why not; nothing was touched.
pub(crate) fn check(spec: &NodeSpec, bootable: &Bootable, cpus: &[Cpu]) -> Result<(), Error> {
    let Some(core) = spec.share_core else {
        return Ok(());
    };
    if bootable.loadable.format != Format::Lwk {
        return Err(not_lightweight());
    }
    // All that is wrong with the options together is known already for a file's node.
    if let Err(mut problems) = spec.check() {
        return Err(problems.remove(0));
    }
    if of_confined(spec).is_some() && !is_owned(cpus, core, CpuOwner::NODE) {
        return Err(not_a_nodes(core));
    }
    match is_owned(cpus, core, CpuOwner::POOL) {
        true => Err(pooled(core)),
        false => Ok(()),
    }
}

/// Has this thread, and the processes that it will start, not run on the core that a node shares, if it does: a task
/// there stands still for as long as the node's kernel does not leave the core, and these are to end it then.
pub fn keep_off_shared_core(handle: &Handle) {
    let shared = handle
        .cpus
        .iter()
        .filter(|cpu| cpu.owner == CpuOwner::SHARED);
    shared.for_each(|cpu| keep_off(cpu.cpu));
}

/// The same of what serves the node's programs, if its kernel is to run on while a task of the base keeps the
/// core to itself.
pub fn keep_proxy_off_shared_core(handle: &Handle) {
    let record = handle.record.as_ref();
    if record.is_some_and(|record| record.spec.share_by == ShareBy::Nmi) {
        keep_off_shared_core(handle);
    }
}

fn keep_off(core: u32) {
    let this_thread = Pid::from_raw(0);
    let leave = |cpus: CpuSet| {
        let mut others = cpus;
        others.unset(core as usize)?;
        sched_setaffinity(this_thread, &others)
    };
    // One that may run nowhere else stays where it is.
    let _ = sched_getaffinity(this_thread).and_then(leave);
}

/// Creates a node on cores of its own, or on the one that it shares.
///
/// # Errors
/// The module's error.
pub(crate) fn create_node(
    driver: &Driver,
    spec: &NodeSpec,
    (name, record): (&Name, &[u8]),
    cpus: &[u32],
    memory: &Memory,
) -> Result<Node, CallError> {
    let name = name.to_abi();
    match spec.share_core {
        None => driver.create_node(&name, record, cpus, memory),
        Some(cpu) => {
            keep_off(cpu);
            let percent = spec.core_share.unwrap_or(CORE_SHARE_DEFAULT);
            // Checked to be a small number.
            let share = (percent as u16, spec.share_by.to_abi());
            driver.create_node_on_shared_core(&name, record, cpu, share, memory)
        }
    }
}

/// The error if the module cannot share that core.
pub(crate) fn refusal(spec: &NodeSpec, error: &CallError) -> Option<Error> {
    let refused = |what: String, hint: &str| Some(Error::new(what).nothing_kept().hint(hint));
    let core = spec.share_core?;
    match (error.errno, of_confined(spec)) {
        (Errno::EOPNOTSUPP, _) => refused(
            "cores of this system cannot be shared".into(),
            "its log says what is in the way: `dmesg | grep 'cores cannot be shared'`",
        ),
        (Errno::ENODEV, Some(_)) => refused(
            format!("core {core} is not one on which a confined node runs"),
            "start its node with `--isolation vmm`, and wait until its kernel has started the core",
        ),
        (Errno::EBUSY, Some(_)) => refused(
            format!("core {core} is shared already, or 16 cores are"),
            "share another one: `insula ps` shows which nodes there are",
        ),
        _ => None,
    }
}

fn not_lightweight() -> Error {
    Error::new("only the lightweight kernel can share a core with this system")
        .untouched()
        .hint("start it with `--image lwk`, or give the node cores of its own")
        .about("share_core")
}

fn not_a_nodes(core: u32) -> Error {
    Error::new(format!("core {core} belongs to no node"))
        .untouched()
        .hint("share it by interrupts or NMIs, or start a confined node on it first")
        .about("share_by")
}

fn pooled(core: u32) -> Error {
    Error::new(format!(
        "core {core} is reserved in the pool, and not this system's"
    ))
    .untouched()
    .hint("share another one, or return it by `insula machine release`")
    .about("share_core")
}

//! A node that shares its core with the base.

use clap::ValueEnum;
use insula_abi as abi;
use insula_abi::{Cpu, CpuOwner};
use insula_base::error::Error;
use insula_driver::{CallError, Driver, Memory, Node, name::Name};
use insula_image::Bootable;
use kimage::Format;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

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
}

impl ShareBy {
    const fn to_abi(self) -> abi::ShareBy {
        match self {
            Self::Interrupt => abi::ShareBy::INTERRUPT,
            Self::Nmi => abi::ShareBy::NMI,
        }
    }
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
    let is_pooled = |cpu: &Cpu| cpu.cpu == core && cpu.owner == CpuOwner::POOL;
    match cpus.iter().any(is_pooled) {
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

/// The error if the module cannot share this base's cores.
pub(crate) fn refusal(spec: &NodeSpec, error: &CallError) -> Option<Error> {
    let is_refused = spec.share_core.is_some() && error.errno == Errno::EOPNOTSUPP;
    is_refused.then(|| {
        Error::new("cores of this system cannot be shared")
            .nothing_kept()
            .hint("its log says what is in the way: `dmesg | grep 'cores cannot be shared'`")
    })
}

fn not_lightweight() -> Error {
    Error::new("only the lightweight kernel can share a core with this system")
        .untouched()
        .hint("start it with `--image lwk`, or give the node cores of its own")
        .about("share_core")
}

fn pooled(core: u32) -> Error {
    Error::new(format!(
        "core {core} is reserved in the pool, and not this system's"
    ))
    .untouched()
    .hint("share another one, or return it by `insula machine release`")
    .about("share_core")
}

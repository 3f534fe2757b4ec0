//! Checks of cores and memory.

use insula_base::root::Root;
use insula_base::topology::{BaseMemory, Topology};
use insula_base::units::{CpuList, Size};

use super::Finding;

/// Smaller amounts cannot hold a distribution's kernel and initrd beside what the base needs.
const AVAILABLE_MIN: Size = Size(256 << 20);

pub(super) fn cores(root: &Root) -> Finding {
    let topology = Topology::read(root);
    let online = topology
        .processors
        .iter()
        .filter(|(_, processor)| processor.online);
    let online: Vec<u32> = online.map(|(&cpu, _)| cpu).collect();
    let found = format!("{} online ({})", online.len(), CpuList(online.clone()));
    match online.iter().filter(|&&cpu| cpu != 0).count() {
        0 => Finding::bad(
            "cores",
            found,
            "a node needs a core besides core 0, which the base keeps: bring more online \
             (/sys/devices/system/cpu/cpu*/online) or use a machine with more",
        ),
        _ => Finding::ok("cores", found),
    }
}

pub(super) fn hyper_threads(root: &Root) -> Finding {
    match Topology::read(root).threads_per_core() {
        1 => Finding::ok("hyper-threads", "one thread per core"),
        threads => Finding::untested(
            "hyper-threads",
            format!("{threads} threads per core"),
            "nodes are given whole cores; for a tested setup disable hyper-threading: \
             `echo off | sudo tee /sys/devices/system/cpu/smt/control`",
        ),
    }
}

pub(super) fn memory(root: &Root) -> Finding {
    let Some(memory) = BaseMemory::read(root) else {
        return Finding::bad(
            "memory",
            "/proc/meminfo cannot be read",
            "mount proc at /proc",
        );
    };
    let (total, available) = (Size(memory.total), Size(memory.available));
    let found = format!("{available} of {total} available");
    if available < AVAILABLE_MIN {
        return Finding::bad(
            "memory",
            found,
            format!("a node needs at least {AVAILABLE_MIN}: end programs, or add memory"),
        );
    }
    Finding::ok("memory", found)
}

//! Faults that the driver makes (`driver/fault`), and what is found of each.

use super::watch::in_node;
use super::watcher_process::Expected;
use crate::base::Finding;

/// Their driver.
pub(super) const DRIVER: &str = "insula_fault.ko";
/// A fault, and what is found of it.
pub(super) type Fault = (&'static str, Expected);

const fn fault(name: &'static str, kind: &'static str, part: &'static str) -> Fault {
    (name, Expected { kind, part })
}

/// Faults that are made together, in this order. The driver's threads are found by the check.
pub(super) const TOGETHER: [Fault; 24] = [
    fault("code", "code-changed", "kernel_halt"),
    fault("call", "call-redirected", "kernel_halt"),
    fault("constants", "constants-changed", "sys_call_table"),
    fault("gate", "interrupt-table-changed", "vector 22"),
    fault(
        "module-code",
        "code-changed",
        "insula_fault:fault_target+0x9",
    ),
    fault(
        "module-constants",
        "constants-changed",
        "insula_fault:fault_constant+0x0",
    ),
    fault("unlisted", "task-hidden", "but not in the task list"),
    fault("unnumbered", "task-hidden", "but not in the table of ids"),
    fault("module", "module-hidden", "not in the list of modules"),
    fault("super", REDIRECTED, "super_operations.freeze_super"),
    fault("inode", REDIRECTED, "inode_operations.fiemap"),
    fault("file", REDIRECTED, "file_operations.remap_file_range"),
    fault("proto", REDIRECTED, "proto.unhash"),
    fault("socket", REDIRECTED, "proto_ops.shutdown"),
    fault("handler", REDIRECTED, "net_protocol.handler"),
    fault("packet", REDIRECTED, "packet_type.func"),
    fault("hook", REDIRECTED, "nf_hook_entry.hook"),
    fault("credentials", "credentials-changed", "(sleep)"),
    fault("hung", "task-hung", "(insula_fault)"),
    fault("mutex", "lock-orphaned", ORPHANED_MUTEX),
    fault("semaphore", "lock-orphaned", ORPHANED_SEMAPHORE),
    fault("deadlock", "deadlock", "waits for the mutex at"),
    fault("slab", "slab-growth", ""),
    fault("memory", "memory-exhausted", ""),
];
const ORPHANED_MUTEX: &str = "the mutex at";
const ORPHANED_SEMAPHORE: &str = "the read-write semaphore at";
const REDIRECTED: &str = "operation-redirected";
pub(super) const NO_PROCESS: &str = "0";
pub(super) const CHECKED: Expected = Expected {
    kind: "check",
    part: "waits: pid ",
};
/// Faults that occupy a core, and what may be found besides.
pub(super) const HANGS: [Fault; 2] = [
    fault("soft", "soft-lockup", "cpu 1"),
    fault("hard", "hard-lockup", "cpu 1"),
];
pub(super) const HANGS_ALSO: [&str; 5] = [
    "check",
    "rcu-stall",
    "soft-lockup",
    "task-hung",
    "task-starved",
];
/// Faults that are repaired together; of a node that cannot be paused, code and what is larger than
/// two words stay as they are.
pub(super) const REPAIRED: [Fault; 2] = [
    fault("gate", "interrupt-table-changed", "vector 22"),
    fault("mutex", "lock-orphaned", ORPHANED_MUTEX),
];
pub(super) const REPAIRED_IN_PAUSE: [Fault; 5] = [
    REPAIRED[0],
    REPAIRED[1],
    fault("semaphore", "lock-orphaned", ORPHANED_SEMAPHORE),
    fault("code", "code-changed", "kernel_halt"),
    fault("unlisted", "task-hidden", "but not in the task list"),
];
/// The first one that is repaired, which is undone.
pub(super) const UNDONE: Fault = fault("constants", "constants-changed", "sys_call_table");

/// Makes faults, by the names of them; some in a process.
pub(super) fn make(faults: &[Fault], process: &str) -> Result<(), Finding> {
    let names: Vec<_> = faults.iter().map(|(name, _)| *name).collect();
    let names = names.join(",");
    in_node(&format!("insmod /{DRIVER} process={process} fault={names}")).map(drop)
}

pub(super) fn expected(faults: &[Fault]) -> Vec<Expected> {
    faults.iter().map(|(_, expected)| *expected).collect()
}

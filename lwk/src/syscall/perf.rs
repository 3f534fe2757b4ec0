//! perf_event_open(2): the base counts what its own processes and processors do.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number::PERF_EVENT_OPEN;
use crate::syscall::delegate::{delegate, finish};
use crate::task::flow::Flow;
use crate::task::process_table;
use crate::task::thread::Thread;

/// perf_event_open(2). Refused for programs of the node: it would count what their proxies do.
pub(super) fn perf_event_open(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match is_of_node(a) {
        true => {
            let refused = refuse(&thread, a[0]);
            finish(thread, refused)
        }
        false => delegate(thread, PERF_EVENT_OPEN, a),
    }
}

/// Whether events of a program of the node are meant.
fn is_of_node([_, process, _, _, flags, _]: [u64; 6]) -> bool {
    /// `PERF_FLAG_FD_NO_GROUP` and `_FD_OUTPUT`, `_PID_CGROUP`, `_FD_CLOEXEC`.
    const FLAGS: u64 = 15;
    /// `PERF_FLAG_PID_CGROUP`: it is a cgroup instead of a process.
    const OF_CGROUP: u64 = 4;
    let process = process as i32;
    let is_own =
        process == 0 || u64::try_from(process).is_ok_and(|id| process_table::handle(id).is_some());
    // The base says what is wrong with other flags.
    is_own && flags & OF_CGROUP == 0 && flags & !FLAGS == 0
}

/// Refuses it, if the attribute is there.
fn refuse(thread: &Thread, attribute: u64) -> Result<u64, Errno> {
    /// `PERF_ATTR_SIZE_VER0`.
    const SIZE: usize = 64;
    thread.process.space().read(attribute, &mut [0; SIZE])?;
    Err(Errno::EPERM)
}

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
    /// `PERF_FLAG_PID_CGROUP`: it is a cgroup instead of a process.
    const OF_CGROUP: u64 = 4;
    let [_, process, _, _, flags, _] = a;
    let process = process as i32;
    let is_of_node =
        process == 0 || u64::try_from(process).is_ok_and(|id| process_table::handle(id).is_some());
    match flags & OF_CGROUP == 0 && is_of_node {
        true => finish(thread, Err(Errno::EPERM)),
        false => delegate(thread, PERF_EVENT_OPEN, a),
    }
}

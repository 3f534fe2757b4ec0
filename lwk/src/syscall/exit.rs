//! Calls that exit.

use alloc::boxed::Box;

use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Converts an exit code to a status as of wait(2).
fn wait_status(code: u64) -> u64 {
    (code & 0xff) << 8
}

/// exit(2): the calling thread alone.
pub(super) fn exit(thread: Box<Thread>, [code, ..]: [u64; 6]) -> Flow {
    thread.exit(wait_status(code))
}

/// exit_group(2): the process.
pub(super) fn exit_group(mut thread: Box<Thread>, [code, ..]: [u64; 6]) -> Flow {
    thread.exit_process(wait_status(code));
    Flow::Exit(thread)
}

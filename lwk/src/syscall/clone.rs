//! clone(2), clone3(2): a thread or a process.

use alloc::boxed::Box;

use crate::syscall::clone_arguments::{CLONE_THREAD, CloneArguments, read_clone_args};
use crate::syscall::delegate::finish;
use crate::syscall::fork;
use crate::syscall::threads::clone_thread;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// clone(2).
pub(super) fn clone(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    const SIGNAL: u64 = 0xff;
    let [flags, stack, parent_tid, child_tid, tls, _] = a;
    let clone_args = CloneArguments {
        flags: u64::from(flags as u32) & !SIGNAL,
        exit_signal: flags & SIGNAL,
        pidfd: parent_tid,
        parent_tid,
        child_tid,
        stack,
        tls,
    };
    thread_or_process(thread, clone_args)
}

/// clone3(2): like clone(2), with the arguments in a structure.
pub(super) fn clone3(thread: Box<Thread>, [address, size, ..]: [u64; 6]) -> Flow {
    match read_clone_args(&thread, address, size) {
        Ok(clone_args) => thread_or_process(thread, clone_args),
        Err(error) => finish(thread, Err(error)),
    }
}

fn thread_or_process(thread: Box<Thread>, clone_args: CloneArguments) -> Flow {
    if clone_args.flags & CLONE_THREAD == 0 {
        return fork::clone(thread, clone_args);
    }
    Flow::handler(thread, move |mut thread| async move {
        let result = clone_thread(&mut thread, &clone_args).await;
        finish(thread, result)
    })
}

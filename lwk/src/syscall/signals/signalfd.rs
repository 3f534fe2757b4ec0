//! signalfd(2): the base reads what is pending for the proxy, which from then on blocks what its
//! program blocks of those signals.

use alloc::boxed::Box;

use crate::model::number::{SIGNALFD, SIGNALFD4};
use crate::syscall::delegate::finish;
use crate::syscall::signals::arguments::{checked_size, read_set};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// signalfd(2).
pub(crate) fn signalfd(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    open(thread, SIGNALFD, a)
}

/// signalfd4(2).
pub(crate) fn signalfd4(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    open(thread, SIGNALFD4, a)
}

fn open(mut thread: Box<Thread>, call: u64, a: [u64; 6]) -> Flow {
    let set = checked_size(a[2]).and_then(|()| read_set(&mut thread, a[1]));
    let set = match set {
        Ok(set) => set,
        Err(error) => return finish(thread, Err(error)),
    };
    Flow::handler(thread, move |mut thread| async move {
        let result = thread.remote_syscall(call, a).await;
        if result.is_ok() {
            // The proxy's thread blocks them before the program runs on.
            thread.process.add_signals_of_fds(set);
        }
        finish(thread, result)
    })
}

//! Calls that must spare the proxy's descriptor of the mm mirror.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number;
use crate::syscall::call::Call;
use crate::syscall::delegate::{delegate, finish};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// close_range(2), except for the mm mirror's descriptor.
pub(super) fn close_range(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    /// `CLOSE_RANGE_UNSHARE`: refused, since the program's threads share their files.
    const UNSHARE: u64 = 2;
    let [first, last, flags, ..] = a.map(|word| u64::from(word as u32));
    let mirror_fd = thread.process.pages().mirror_fd();
    if flags & UNSHARE != 0 {
        return finish(thread, Err(Errno::EINVAL));
    }
    if !(first..=last).contains(&mirror_fd) {
        return delegate(thread, number::CLOSE_RANGE, a);
    }
    Flow::handler(thread, move |mut thread| async move {
        if first < mirror_fd {
            let below = [first, mirror_fd - 1, flags, 0, 0, 0];
            if let Err(error) = thread.remote_syscall(number::CLOSE_RANGE, below).await {
                return finish(thread, Err(error));
            }
        }
        match mirror_fd < last {
            true => {
                let above = [mirror_fd + 1, last, flags, 0, 0, 0];
                delegate(thread, number::CLOSE_RANGE, above)
            }
            false => finish(thread, Ok(0)),
        }
    })
}

/// Whether a call would close, replace or copy the proxy's descriptor of the mm mirror. It is not
/// the program's, and a copy left anywhere would make the base believe that the proxy is alive.
pub(super) fn is_mirror_fd(thread: &Thread, call: &Call, arguments: [u64; 6]) -> bool {
    let mirror_fd = thread.process.pages().mirror_fd() as u32;
    let mut fds = arguments.iter().take(call.spared_fds);
    fds.any(|&fd| fd as u32 == mirror_fd)
}

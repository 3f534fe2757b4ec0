//! The signal mask of a thread's proxy: the base's terminals check it.

use crate::model::number;
use crate::model::signals::set::TTY_STOP;
use crate::syscall::signals::arguments::SET_SIZE;
use crate::task::thread::Thread;

/// Whether the proxy's thread blocks other tty stop signals (SIGTTIN, SIGTTOU) than this thread:
/// the base checks that during a call on a terminal.
pub(super) fn is_mask_outdated(thread: &Thread) -> bool {
    thread.handle.blocked() & TTY_STOP != thread.blocked_in_proxy
}

/// Blocks in the proxy's thread the tty stop signals that this thread blocks.
pub(super) async fn block_in_proxy(thread: &mut Thread) {
    const SET: u64 = 2;
    let blocked = thread.handle.blocked() & TTY_STOP;
    let Some(set) = thread.put_scratch(&[blocked]) else {
        return;
    };
    let arguments = [SET, set, 0, SET_SIZE, 0, 0];
    let done = thread
        .remote_syscall_as_kernel(number::RT_SIGPROCMASK, arguments)
        .await;
    if done.is_ok() {
        thread.blocked_in_proxy = blocked;
    }
}

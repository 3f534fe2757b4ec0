//! The signal mask of a thread's proxy, where the base itself has to know it: its terminals check
//! it, and what a signalfd(2) reads is pending there.

use crate::model::number;
use crate::model::signals::info::Info;
use crate::model::signals::set::{Set, TTY_STOP};
use crate::syscall::signals::arguments::SET_SIZE;
use crate::task::thread::Thread;

/// The signals that the proxy's thread is to block: tty stop signals, and those of a signalfd, if
/// this thread blocks them and does not wait for them.
fn mask_in_proxy(thread: &Thread) -> Set {
    let awaited = thread.sigwait.map_or(0, |(set, _)| set);
    let kept = TTY_STOP | thread.process.signals_of_fds();
    thread.handle.blocked() & kept & !awaited
}

/// Whether the proxy's thread blocks other signals than it is to.
pub(super) fn is_mask_outdated(thread: &Thread) -> bool {
    mask_in_proxy(thread) != thread.blocked_in_proxy
}

/// The same for signals that a signalfd reads. Else they would not stay pending there.
pub(super) fn is_mask_of_fds_outdated(thread: &Thread) -> bool {
    let of_fds = thread.process.signals_of_fds();
    of_fds != 0 && (mask_in_proxy(thread) ^ thread.blocked_in_proxy) & of_fds != 0
}

/// Whether signals for a signalfd are pending in this kernel, or would become so.
pub(crate) fn has_signals_for_fds(thread: &Thread) -> bool {
    if thread.process.signals_of_fds() == 0 {
        return false;
    }
    thread.process.take_base_signals();
    let kept = mask_in_proxy(thread) & thread.process.signals_of_fds();
    is_mask_of_fds_outdated(thread) || thread.process.signals().has_blocked(thread.id, kept)
}

/// Makes signals pending on the base that a signalfd reads.
pub(crate) async fn pass_to_fds(thread: &mut Thread) {
    if is_mask_outdated(thread) {
        block_in_proxy(thread).await;
    }
    // What it did not block until now, it may have caught.
    thread.process.take_base_signals();
    let kept = thread.blocked_in_proxy & thread.process.signals_of_fds();
    loop {
        let taken = thread.process.signals().take_blocked(thread.id, kept);
        let Some((info, is_own)) = taken else {
            return;
        };
        send_to_proxy(thread, &info, is_own).await;
    }
}

/// Sends a signal to the proxy, which blocks it: to the thread's or to any thread.
async fn send_to_proxy(thread: &mut Thread, info: &Info, is_own: bool) {
    let bytes = info.to_bytes();
    let words = bytes.as_chunks::<8>().0.iter();
    let mut scratch = [0; Info::SIZE / 8];
    for (word, bytes) in scratch.iter_mut().zip(words) {
        *word = u64::from_le_bytes(*bytes);
    }
    let Some(at) = thread.put_scratch(&scratch) else {
        return;
    };
    let (pid, id, signal) = (thread.process.pages().pid(), thread.id, info.signal.into());
    let (queue, send) = match is_own {
        true => (
            (number::RT_TGSIGQUEUEINFO, [pid, id, signal, at, 0, 0]),
            (number::TGKILL, [pid, id, signal, 0, 0, 0]),
        ),
        false => (
            (number::RT_SIGQUEUEINFO, [pid, signal, at, 0, 0, 0]),
            (number::KILL, [pid, signal, 0, 0, 0, 0]),
        ),
    };
    // Only its first thread may say that the base or kill(2) has sent it.
    let queued = thread.remote_syscall_as_kernel(queue.0, queue.1).await;
    if queued.is_err() {
        let _ = thread.remote_syscall_as_kernel(send.0, send.1).await;
    }
}

/// Returns the signals that are pending for the proxy's thread, which blocks them.
pub(super) async fn pending_in_proxy(thread: &mut Thread) -> Set {
    let Some(at) = thread.put_scratch(&[0]) else {
        return 0;
    };
    let arguments = [at, SET_SIZE, 0, 0, 0, 0];
    let done = thread
        .remote_syscall_as_kernel(number::RT_SIGPENDING, arguments)
        .await;
    done.map_or(0, |_| thread.slot.scratch()[0])
}

/// Blocks in the proxy's thread what it is to block, and nothing else.
pub(super) async fn block_in_proxy(thread: &mut Thread) {
    const SET: u64 = 2;
    let blocked = mask_in_proxy(thread);
    thread.blocked_in_proxy = blocked;
    let Some(set) = thread.put_scratch(&[blocked]) else {
        return;
    };
    let arguments = [SET, set, 0, SET_SIZE, 0, 0];
    // It fails only if the proxy has exited.
    let _ = thread
        .remote_syscall_as_kernel(number::RT_SIGPROCMASK, arguments)
        .await;
}

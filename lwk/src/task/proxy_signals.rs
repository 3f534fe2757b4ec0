//! Actions of the proxy for signals: it stops with its program, and ignores what its program
//! ignores.

use alloc::boxed::Box;

use crate::model::number as syscall_number;
use crate::model::signals::action::Action;
use crate::model::signals::number;
use crate::model::signals::set::{TTY_STOP, bit};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Size of a signal set, in bytes.
const SET_SIZE: u64 = 8;
/// The kernel's `struct sigaction`, in words: handler, flags, restorer, mask.
type SigactionWords = [u64; 4];
const DEFAULT: SigactionWords = [Action::DEFAULT, 0, 0, 0];
const IGNORE: SigactionWords = [Action::IGNORE, 0, 0, 0];

/// Has the base stop the proxy, and the thread wait until that is over.
pub(crate) fn stop(thread: Box<Thread>, signal: u32) -> Flow {
    Flow::handler(thread, async move |mut thread| {
        stop_proxy(&mut thread, signal).await;
        thread.stopping = None;
        thread.process.resume();
        Flow::Continue(thread)
    })
}

/// Stops the proxy by a signal that it usually catches, so that its parent learns which; else by
/// SIGSTOP. A cancellation meant for an earlier call of the program may hit either call, which is then
/// made again: nobody would stop the program later.
async fn stop_proxy(thread: &mut Thread, signal: u32) {
    let pid = thread.process.pages().pid();
    let mut call = (syscall_number::KILL, [pid, number::STOP.into(), 0, 0, 0, 0]);
    if signal != number::STOP && set_action(thread, signal, DEFAULT).await.is_some() {
        thread.uncaught_in_proxy = Some(signal);
        call = (
            syscall_number::TGKILL,
            [pid, thread.id, signal.into(), 0, 0, 0],
        );
    }
    // It fails only if the proxy has exited.
    let _ = thread.remote_syscall_as_kernel(call.0, call.1).await;
}

/// Makes the proxy catch the signal again that stopped the program.
pub(crate) fn restore_proxy_handler(mut thread: Box<Thread>) -> Flow {
    match thread.uncaught_in_proxy.take() {
        Some(signal) => Flow::handler(thread, move |mut thread| async move {
            mirror_action(&mut thread, signal).await;
            Flow::Continue(thread)
        }),
        None => Flow::Continue(thread),
    }
}

/// Makes the proxy ignore a tty stop signal that the program ignores, because the base's terminal
/// checks that; otherwise makes it catch the signal.
pub(crate) async fn mirror_action(thread: &mut Thread, signal: u32) {
    let action = thread.process.signals().action(signal);
    let ignores = action.handler == Action::IGNORE && bit(signal) & TTY_STOP != 0;
    let action = match ignores {
        true => Some(IGNORE),
        false => proxy_handler(thread).await,
    };
    if let Some(action) = action {
        // It fails only if the proxy has exited.
        let _ = set_action(thread, signal, action).await;
    }
}

/// Sets the proxy's action for a signal, unless the proxy has exited.
async fn set_action(thread: &mut Thread, signal: u32, action: SigactionWords) -> Option<()> {
    let at = thread.put_scratch(&action)?;
    let arguments = [signal.into(), at, 0, SET_SIZE, 0, 0];
    thread
        .remote_syscall_as_kernel(syscall_number::RT_SIGACTION, arguments)
        .await
        .ok()
        .map(drop)
}

/// Returns the proxy's action for a caught stop signal: that for a signal that it always catches,
/// but without SA_RESTART, so that this kernel handles the signal before a call is restarted.
async fn proxy_handler(thread: &mut Thread) -> Option<SigactionWords> {
    let at = thread.put_scratch(&DEFAULT)?;
    let arguments = [number::WINCH.into(), 0, at, SET_SIZE, 0, 0];
    thread
        .remote_syscall_as_kernel(syscall_number::RT_SIGACTION, arguments)
        .await
        .ok()?;
    let [handler, flags, restorer, mask, ..] = thread.slot.scratch();
    Some([handler, flags & !Action::RESTART, restorer, mask])
}

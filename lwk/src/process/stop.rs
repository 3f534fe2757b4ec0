//! Stopped programs: the base stops the proxy, and this kernel runs none of the threads until
//! SIGCONT.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use super::signals::{Action, TTY_STOP, bit, number};
use super::{Flow, Key, Process, Thread, Waiter, futex};
use crate::cores;
use crate::syscall::number as syscall_number;

/// Size of a signal set, in bytes.
const SET_SIZE: u64 = 8;
/// The kernel's `struct sigaction`, in words: handler, flags, restorer, mask.
type SigactionWords = [u64; 4];
const DEFAULT: SigactionWords = [Action::DEFAULT, 0, 0, 0];
const IGNORE: SigactionWords = [Action::IGNORE, 0, 0, 0];

impl Process {
    /// Returns the key of stopped threads. It is not an address, so no futex has it.
    fn stop_key(&self) -> Key {
        (self.pages().number(), 1 << 62)
    }

    /// Whether it is stopped: by this kernel, which has the base do the same, or by the base.
    #[must_use]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) || self.pages().is_stopped()
    }

    /// Ends a stop by this kernel.
    pub(super) fn resume(&self) {
        if self.stopped.swap(false, Ordering::AcqRel) {
            self.wake_stopped();
        }
    }

    /// Applies the base's stop state.
    pub(super) fn update_stopped(&self) {
        let is_stopped = self.pages().is_stopped();
        if self.base_stopped.swap(is_stopped, Ordering::AcqRel) == is_stopped {
            return;
        }
        match is_stopped {
            true => cores::wake_all(),
            false => self.wake_stopped(),
        }
    }

    /// Wakes stopped threads, which check whether they may run.
    fn wake_stopped(&self) {
        futex::wake(self.stop_key(), u32::MAX, u32::MAX);
    }
}

/// Begins to stop the program by a signal: no other thread runs any more. [`stop`] does the rest.
pub(super) fn begin_stop(thread: &mut Thread, signal: u32) {
    thread.process.stopped.store(true, Ordering::Release);
    cores::wake_all();
    thread.stopping = Some(signal);
}

/// Has the base stop the proxy, and the thread wait for that.
pub(crate) fn stop(mut thread: Box<Thread>) -> Flow {
    match thread.stopping {
        Some(signal) if signal != number::STOP => {
            Flow::handler(thread, move |thread| stop_by_default_action(thread, signal))
        }
        _ => {
            submit_stop(&mut thread);
            Flow::Delegated(thread)
        }
    }
}

/// Stops the proxy by a signal that it usually catches, so that its parent learns which.
async fn stop_by_default_action(mut thread: Box<Thread>, signal: u32) -> Flow {
    match set_action(&mut thread, signal, DEFAULT).await {
        Some(()) => {
            thread.uncaught_in_proxy = Some(signal);
            let pid = thread.process.pages().pid();
            let to = [pid, thread.id, signal.into(), 0, 0, 0];
            thread.slot.submit(syscall_number::TGKILL, to);
        }
        None => submit_stop(&mut thread),
    }
    Flow::Delegated(thread)
}

fn submit_stop(thread: &mut Thread) {
    let pid = thread.process.pages().pid();
    let to = [pid, number::STOP.into(), 0, 0, 0, 0];
    thread.slot.submit(syscall_number::KILL, to);
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

/// Blocks a thread while its program is stopped.
pub(crate) fn wait_while_stopped(mut thread: Box<Thread>) -> Option<Box<Thread>> {
    thread.extended.save();
    let before = thread.wake_result.replace(thread.context.registers.rax);
    debug_assert!(before.is_none(), "a running thread is not in vfork");
    let key = thread.process.stop_key();
    let waiter = Waiter::new(thread, u32::MAX, None);
    let should_wait = |thread: &mut Thread| thread.process.is_stopped() && !thread.must_not_block();
    let mut thread = futex::wait(key, waiter, should_wait)?;
    thread.wake_result = None;
    Some(thread)
}

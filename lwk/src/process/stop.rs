//! Programs that are stopped: by the base, which keeps the proxy, and here, where no thread of them runs
//! until it goes on.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use super::signals::{Action, OF_BACKGROUND, bit, number};
use super::{Key, Process, Thread, Waiter, futex};
use crate::calls::number as call;
use crate::cores;

/// Bytes of a set of signals.
const SET_SIZE: u64 = 8;
/// `struct sigaction` of the kernel, in words: handler, flags, restorer, mask.
type ActionWords = [u64; 4];
const DEFAULT: ActionWords = [Action::DEFAULT, 0, 0, 0];
const IGNORED: ActionWords = [Action::IGNORE, 0, 0, 0];

impl Process {
    /// What threads wait for that are stopped: no place of a program.
    fn stop_key(&self) -> Key {
        (self.pages().number(), 1 << 62)
    }

    /// Whether it is stopped: by this kernel, which has the base do the same, or by the base.
    #[must_use]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) || self.pages().is_stopped()
    }

    /// This kernel does not stop it any more.
    pub(super) fn resume(&self) {
        if self.stopped.swap(false, Ordering::AcqRel) {
            self.wake_stopped();
        }
    }

    /// The base may have stopped it, or have it go on.
    pub(super) fn look_at_stop(&self) {
        let is_stopped = self.pages().is_stopped();
        if self.base_stopped.swap(is_stopped, Ordering::AcqRel) == is_stopped {
            return;
        }
        match is_stopped {
            true => cores::wake_all(),
            false => self.wake_stopped(),
        }
    }

    /// Has those of its threads that wait since it is stopped look whether it still is.
    fn wake_stopped(&self) {
        futex::wake(self.stop_key(), u32::MAX, u32::MAX);
    }
}

/// Has the base stop the program as that signal does, and the thread wait until it goes on.
pub(crate) fn stop(thread: &mut Thread, signal: u32) {
    let pid = thread.process.pages().pid();
    thread.process.stopped.store(true, Ordering::Release);
    cores::wake_all();
    thread.is_stopping = true;
    if signal != number::STOP && set_action(thread, signal, DEFAULT).is_some() {
        thread.uncaught = Some(signal);
        let to = [pid, thread.id, signal.into(), 0, 0, 0];
        thread.desk.post(call::TGKILL, to);
    } else {
        let to = [pid, number::STOP.into(), 0, 0, 0, 0];
        thread.desk.post(call::KILL, to);
    }
}

/// The proxy catches again what has stopped the program.
pub(super) fn catch_again(thread: &mut Thread) {
    if let Some(signal) = thread.uncaught.take() {
        mirror_action(thread, signal);
    }
}

/// Has the proxy ignore a signal that the program ignores, if it is one of which the base itself looks
/// who does when the terminal is used from the background; and else catch it.
pub(crate) fn mirror_action(thread: &mut Thread, signal: u32) {
    let action = thread.process.signals().action(signal);
    let ignores = action.handler == Action::IGNORE && bit(signal) & OF_BACKGROUND != 0;
    let action = match ignores {
        true => Some(IGNORED),
        false => caught(thread),
    };
    // Nobody is left to be told.
    let _ = action.and_then(|action| set_action(thread, signal, action));
}

/// Changes what the proxy does about a signal, unless it is gone.
fn set_action(thread: &mut Thread, signal: u32, action: ActionWords) -> Option<()> {
    let at = thread.put_scratch(&action)?;
    let arguments = [signal.into(), at, 0, SET_SIZE, 0, 0];
    thread
        .call_as_kernel(call::RT_SIGACTION, arguments)
        .ok()
        .map(drop)
}

/// What the proxy does about a signal that stops: what it does about one that it catches always, but a
/// call that it breaks off is not made anew before this kernel has looked.
fn caught(thread: &mut Thread) -> Option<ActionWords> {
    let at = thread.put_scratch(&DEFAULT)?;
    let arguments = [number::WINCH.into(), 0, at, SET_SIZE, 0, 0];
    thread.call_as_kernel(call::RT_SIGACTION, arguments).ok()?;
    let [handler, flags, restorer, mask, ..] = thread.desk.scratch();
    Some([handler, flags & !Action::RESTART, restorer, mask])
}

/// Has a thread wait until its program goes on, if that is stopped.
pub(crate) fn park(mut thread: Box<Thread>) -> Option<Box<Thread>> {
    thread.extended.save();
    let before = thread.copy_let_go.replace(thread.context.registers.rax);
    debug_assert!(before.is_none(), "a thread that runs waits for no copy");
    let key = thread.process.stop_key();
    let waiter = Waiter::new(thread, u32::MAX, None);
    let still = |thread: &mut Thread| thread.process.is_stopped() && !thread.cannot_wait();
    let mut thread = futex::wait(key, waiter, still)?;
    thread.copy_let_go = None;
    Some(thread)
}

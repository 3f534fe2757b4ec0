//! Stopped programs: this kernel runs none of the threads until SIGCONT.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use crate::hw::cores;
use crate::model::futex::{Key, Waiter};
use crate::task::futex;
use crate::task::process::Process;
use crate::task::thread::Thread;

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

/// Begins to stop the program by a signal: no other thread runs any more. `proxy_signals::stop`
/// does the rest.
pub(crate) fn begin_stop(thread: &mut Thread, signal: u32) {
    thread.process.stopped.store(true, Ordering::Release);
    cores::wake_all();
    thread.stopping = Some(signal);
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

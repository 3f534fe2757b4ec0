//! Signals of a process: actions, masks, pending signals, and which thread handles a signal.
//!
//! Pure: functions return the thread to wake, and the caller does so.
//!
//! Source: signal(7) of Linux.

pub mod action;
pub mod frame;
pub mod from_base;
pub mod info;
pub mod number;
pub(crate) mod pending;
pub mod set;
#[cfg(test)]
mod tests;
pub mod timer;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::model::scheduling::{CoreSet, Priority};
use crate::model::signals::action::Action;
use crate::model::signals::info::Info;
use crate::model::signals::pending::PendingQueue;
use crate::model::signals::set::{
    DEFAULT_CORE_DUMP, DEFAULT_IGNORED, SIGNALS, STOP_SIGNALS, Set, UNBLOCKABLE, bit,
};
use crate::model::signals::timer::Timer;
use crate::model::thread_handle::ThreadHandle;

#[derive(Debug)]
struct ThreadSignals {
    id: u64,
    blocked: Set,
    /// Signals that it waits for in sigtimedwait(2).
    awaited: Set,
    queue: PendingQueue,
    handle: Arc<ThreadHandle>,
}

impl ThreadSignals {
    fn accepts(&self, signal: u32) -> bool {
        (!self.blocked | self.awaited) & bit(signal) != 0
    }
}

/// What a thread does about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Run the handler.
    Handle(Info, Action),
    /// Terminate the process.
    Terminate {
        /// The signal.
        signal: u32,
        /// Whether the default action is to dump core.
        dumps_core: bool,
    },
    /// Stop the process.
    Stop {
        /// The signal.
        signal: u32,
    },
}

/// Signals of a process.
#[derive(Debug)]
pub struct Signals {
    actions: [Action; SIGNALS as usize],
    process_pending: PendingQueue,
    threads: Vec<ThreadSignals>,
    /// POSIX timers, which the base runs for the program.
    timers: Vec<Timer>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            actions: [Action::default(); SIGNALS as usize],
            process_pending: PendingQueue::default(),
            threads: Vec::new(),
            timers: Vec::new(),
        }
    }
}

impl Signals {
    /// Adds a thread on a core, with an initial signal mask. Returns its handle.
    pub fn add_thread(
        &mut self,
        id: u64,
        blocked: Set,
        core: u32,
        scheduling: (Priority, CoreSet),
    ) -> Arc<ThreadHandle> {
        let handle = ThreadHandle::new(blocked, core, scheduling);
        self.threads.push(ThreadSignals {
            id,
            blocked,
            awaited: 0,
            queue: PendingQueue::default(),
            handle: Arc::clone(&handle),
        });
        handle
    }

    /// Removes a thread. Signals pending for the process go to other threads.
    pub fn remove_thread(&mut self, id: u64) {
        self.threads.retain(|thread| thread.id != id);
        self.notify_process_pending();
    }

    /// Changes a thread's id.
    pub fn rename(&mut self, from: u64, to: u64) {
        if let Some(thread) = self.thread(from) {
            thread.id = to;
        }
    }

    /// Whether the process has a thread with that id.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.threads.iter().any(|thread| thread.id == id)
    }

    /// Returns a thread's handle.
    #[must_use]
    pub fn handle(&self, id: u64) -> Option<Arc<ThreadHandle>> {
        let thread = self.threads.iter().find(|thread| thread.id == id);
        thread.map(|thread| Arc::clone(&thread.handle))
    }

    /// Returns the handles of all threads, in the order of their starts.
    pub fn handles(&self) -> impl ExactSizeIterator<Item = &ThreadHandle> {
        self.threads.iter().map(|thread| &*thread.handle)
    }

    fn thread(&mut self, id: u64) -> Option<&mut ThreadSignals> {
        self.threads.iter_mut().find(|thread| thread.id == id)
    }

    /// Returns the action for a signal, 1 to [`SIGNALS`].
    #[must_use]
    pub fn action(&self, signal: u32) -> Action {
        self.actions[signal as usize - 1]
    }

    /// Sets the action for a signal. If it is now ignored, pending instances are discarded.
    pub fn set_action(&mut self, signal: u32, action: Action) {
        self.actions[signal as usize - 1] = action;
        if self.is_ignored(signal) {
            self.drop_all(bit(signal));
        }
    }

    /// Resets handlers to the default, as execve(2) does; ignored signals stay ignored.
    pub fn clear_handlers(&mut self) {
        for action in &mut self.actions {
            if action.handler != Action::IGNORE {
                *action = Action::default();
            }
        }
    }

    /// Returns what a child inherits: the actions, but no pending signals.
    #[must_use]
    pub fn clone_for_child(&self) -> Self {
        let mut child = Self::default();
        for signal in 1..=SIGNALS {
            child.set_action(signal, self.action(signal));
        }
        child
    }

    /// Ignores all signals of a set.
    pub fn ignore(&mut self, ignored: Set) {
        for signal in (1..=SIGNALS).filter(|&signal| ignored & !UNBLOCKABLE & bit(signal) != 0) {
            let handler = Action::IGNORE;
            self.set_action(
                signal,
                Action {
                    handler,
                    ..Action::default()
                },
            );
        }
    }

    fn is_ignored(&self, signal: u32) -> bool {
        match self.action(signal).handler {
            Action::IGNORE => true,
            Action::DEFAULT => DEFAULT_IGNORED & bit(signal) != 0,
            _ => false,
        }
    }

    /// Sends a signal to a thread, or to any thread that accepts it. Returns the thread to wake, if
    /// any.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn send(
        &mut self,
        to: Option<u64>,
        info: Info,
    ) -> Result<Option<Arc<ThreadHandle>>, QueueFull> {
        // SIGCONT discards pending stop signals, and these discard a pending SIGCONT.
        if info.signal == number::CONT {
            self.drop_all(STOP_SIGNALS);
        } else if STOP_SIGNALS & bit(info.signal) != 0 {
            self.drop_all(bit(number::CONT));
        }
        let is_target = |thread: &&ThreadSignals| to.is_none_or(|id| thread.id == id);
        let threads = || self.threads.iter().filter(is_target);
        if self.is_ignored(info.signal)
            && threads().all(|thread| thread.awaited == 0 && thread.accepts(info.signal))
        {
            return Ok(None);
        }
        let target = threads().find(|thread| thread.accepts(info.signal));
        let target = target.map(|thread| Arc::clone(&thread.handle));
        let queue = match to {
            Some(id) => self.thread(id).map(|thread| &mut thread.queue),
            None => Some(&mut self.process_pending),
        };
        if queue.is_some_and(|queue| !queue.push(info)) {
            return Err(QueueFull);
        }
        if let Some(handle) = &target {
            handle.set_signal_pending(true);
        }
        Ok(target)
    }

    fn drop_all(&mut self, dropped: Set) {
        for signal in (1..=SIGNALS).filter(|&signal| dropped & bit(signal) != 0) {
            self.process_pending.drop_all(signal);
            let threads = self.threads.iter_mut();
            threads.for_each(|thread| thread.queue.drop_all(signal));
        }
    }

    fn notify_process_pending(&self) {
        for info in &self.process_pending.infos {
            if let Some(thread) = self
                .threads
                .iter()
                .find(|thread| thread.accepts(info.signal))
            {
                thread.handle.set_signal_pending(true);
            }
        }
    }

    /// Returns a thread's signal mask.
    #[must_use]
    pub fn blocked(&self, id: u64) -> Set {
        let thread = self.threads.iter().find(|thread| thread.id == id);
        thread.map_or(0, |thread| thread.blocked)
    }

    /// Sets a thread's signal mask. Returns the old one.
    pub fn block(&mut self, id: u64, blocked: Set) -> Set {
        let Some(thread) = self.thread(id) else {
            return 0;
        };
        let before = core::mem::replace(&mut thread.blocked, blocked & !UNBLOCKABLE);
        thread
            .handle
            .blocked
            .store(thread.blocked, Ordering::Relaxed);
        self.recalc_signal_pending(id);
        self.notify_process_pending();
        before
    }

    /// Has all threads come to where signals are delivered. Returns their handles.
    pub fn mark_all(&self) -> Vec<Arc<ThreadHandle>> {
        let handles = self.threads.iter().map(|thread| Arc::clone(&thread.handle));
        handles
            .inspect(|handle| handle.set_signal_pending(true))
            .collect()
    }

    /// Returns all pending signals, of the process and its threads.
    #[must_use]
    pub fn all_pending(&self) -> Set {
        let threads = self.threads.iter().map(|thread| thread.queue.set());
        threads.fold(self.process_pending.set(), |all, set| all | set)
    }

    /// Marks a thread if a signal is pending for it.
    fn recalc_signal_pending(&mut self, id: u64) {
        let process_pending = self.process_pending.set();
        if let Some(thread) = self.thread(id)
            && (thread.queue.set() | process_pending) & (!thread.blocked | thread.awaited) != 0
        {
            thread.handle.set_signal_pending(true);
        }
    }

    /// Makes a thread accept signals for sigtimedwait(2), blocked or not; an empty set ends that.
    /// Marks the thread if one is pending already.
    pub fn await_signals(&mut self, id: u64, awaited: Set) {
        if let Some(thread) = self.thread(id) {
            thread.awaited = awaited;
        }
        self.recalc_signal_pending(id);
    }

    /// Returns the pending signals that a thread blocks.
    #[must_use]
    pub fn pending(&self, id: u64) -> Set {
        let own = self.threads.iter().find(|thread| thread.id == id);
        own.map_or(0, |own| {
            (own.queue.set() | self.process_pending.set()) & own.blocked
        })
    }

    /// Whether a signal of a set is pending that a thread blocks: one of its own, or one of the
    /// process that every thread blocks.
    #[must_use]
    pub fn has_blocked(&self, id: u64, wanted: Set) -> bool {
        let own = self.threads.iter().find(|thread| thread.id == id);
        own.is_some_and(|own| own.queue.set() & wanted != 0)
            || self.process_pending.set() & wanted & self.blocked_by_all() != 0
    }

    /// Dequeues such a signal. Also returns whether it is the thread's own.
    pub fn take_blocked(&mut self, id: u64, wanted: Set) -> Option<(Info, bool)> {
        let own = self.thread(id)?.queue.take(wanted).map(|info| (info, true));
        let all = wanted & self.blocked_by_all();
        own.or_else(|| self.process_pending.take(all).map(|info| (info, false)))
    }

    fn blocked_by_all(&self) -> Set {
        let blocked = self.threads.iter();
        blocked.fold(Set::MAX, |all, thread| {
            all & thread.blocked & !thread.awaited
        })
    }

    /// Dequeues a signal of a set that is pending for the thread or the process.
    pub fn take(&mut self, id: u64, wanted: Set) -> Option<Info> {
        let own = self.thread(id).and_then(|thread| thread.queue.take(wanted));
        own.or_else(|| self.process_pending.take(wanted))
    }

    /// Returns what a marked thread shall do next; `None` if no signal is pending for it.
    pub fn next(&mut self, id: u64) -> Option<Disposition> {
        let thread = self.thread(id)?;
        thread.handle.set_signal_pending(false);
        let wanted = !thread.blocked;
        while let Some(info) = self.take(id, wanted) {
            let disposition = self.disposition(info);
            if disposition.is_some() {
                self.thread(id)?.handle.set_signal_pending(true);
                return disposition;
            }
        }
        None
    }

    fn disposition(&mut self, info: Info) -> Option<Disposition> {
        let signal = info.signal;
        let action = self.action(signal);
        match action.handler {
            Action::IGNORE => None,
            Action::DEFAULT if DEFAULT_IGNORED & bit(signal) != 0 => None,
            Action::DEFAULT if STOP_SIGNALS & bit(signal) != 0 => {
                Some(Disposition::Stop { signal })
            }
            Action::DEFAULT => Some(termination(signal)),
            _ => {
                if action.flags & Action::RESET != 0 {
                    self.actions[signal as usize - 1].handler = Action::DEFAULT;
                }
                Some(Disposition::Handle(info, action))
            }
        }
    }

    /// Sends a synchronous signal to the thread that caused it. If it is blocked or ignored, it
    /// terminates the program.
    pub fn force(&mut self, id: u64, info: Info) {
        let signal = info.signal;
        let blocked = self.blocked(id) & bit(signal) != 0;
        if blocked || self.action(signal).handler == Action::IGNORE {
            self.actions[signal as usize - 1].handler = Action::DEFAULT;
            let unblocked = self.blocked(id) & !bit(signal);
            self.block(id, unblocked);
        }
        // A signal already queued has the same effect.
        let _ = self.send(Some(id), info);
    }
}

/// Returns the termination of a process by a signal.
#[must_use]
pub fn termination(signal: u32) -> Disposition {
    Disposition::Terminate {
        signal,
        dumps_core: DEFAULT_CORE_DUMP & bit(signal) != 0,
    }
}

/// Too many signals are pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

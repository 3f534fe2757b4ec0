//! Sending signals to processes and threads.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::hw::cores;
use crate::model::signals::info::Info;
use crate::model::signals::{QueueFull, number};
use crate::model::thread_handle::ThreadHandle;
use crate::task::blocked;
use crate::task::process::Process;
use crate::task::thread::Thread;

impl Process {
    /// Sends a signal to the process or one of its threads, and wakes the thread that shall handle
    /// it.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn send_signal(&self, to: Option<u64>, info: Info) -> Result<(), QueueFull> {
        if info.signal == number::CONT {
            self.resume();
        }
        let notified = self.signals().send(to, info)?;
        if let Some(handle) = notified {
            blocked::interrupt(self.pages.number(), Thread::is_wakeable_by_signal);
            cores::interrupt(handle.core.load(Ordering::Relaxed));
        }
        Ok(())
    }

    /// Takes the signals that the base has queued, in their order. A signal caused by a delegated
    /// call is queued before the call's reply.
    pub(crate) fn take_base_signals(&self) {
        if !self.pages.has_signals() || self.is_taking_over.load(Ordering::Acquire) {
            return;
        }
        let (notified, continues) = self.queue_base_signals();
        if continues {
            self.resume();
        }
        if notified.is_empty() {
            return;
        }
        blocked::interrupt(self.pages.number(), Thread::is_wakeable_by_signal);
        for handle in notified {
            cores::interrupt(handle.core.load(Ordering::Relaxed));
        }
    }

    /// Dequeues the base's signals under one lock, so that their order is kept and each is seen
    /// only after its thread is notified. Returns the threads to wake, and whether there was a
    /// SIGCONT.
    fn queue_base_signals(&self) -> (Vec<Arc<ThreadHandle>>, bool) {
        let mut signals = self.signals();
        let (mut notified, mut continues) = (Vec::new(), false);
        while let Some(sent) = self.pages.dequeue_signal() {
            continues |= sent.signal == number::CONT as i32;
            notified.extend(signals.send_from_base(&sent, self.pages.pid()));
        }
        let mut others = self.pages.take_overflowed_signals();
        while others != 0 {
            let info = Info::sent(others.trailing_zeros() + 1, Info::USER, 0, 0);
            others &= others - 1;
            // The queue may be full, as on Linux.
            notified.extend(signals.send(None, info).ok().flatten());
        }
        (notified, continues)
    }
}

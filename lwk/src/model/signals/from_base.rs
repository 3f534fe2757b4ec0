//! Signals from the base: decoding them, and finding out whether they are directed at a thread.

use alloc::sync::Arc;

use insula_abi::lwk;

use crate::hw::memory::room::reserve_in;
use crate::model::errno::Errno;
use crate::model::signals::Signals;
use crate::model::signals::info::Info;
use crate::model::signals::number;
use crate::model::signals::set::SIGNALS;
use crate::model::signals::timer::Timer;
use crate::model::thread_handle::ThreadHandle;

impl Info {
    /// Decodes a signal of the base; `None` if there is no such signal.
    #[must_use]
    pub fn from_base(sent: &lwk::Signal) -> Option<Self> {
        let signal = u32::try_from(sent.signal).ok()?;
        (1..=SIGNALS).contains(&signal).then_some(Self {
            signal,
            errno: sent.error,
            code: sent.code,
            fields: sent.fields,
        })
    }

    /// Returns the lower half of the first field: the sender, or the timer.
    fn sender(&self) -> u32 {
        self.fields[0] as u32
    }
}

impl Signals {
    /// Reserves room for another timer.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] without kernel memory for it.
    pub fn reserve_timer(&mut self) -> Result<(), Errno> {
        reserve_in(&mut self.timers, 1).map_err(|_| Errno::EAGAIN)
    }

    /// Adds a timer, for which [`Signals::reserve_timer`] has made room.
    pub fn add_timer(&mut self, timer: Timer) {
        self.remove_timer(timer.id);
        self.timers.push(timer);
    }

    /// Removes a timer.
    pub fn remove_timer(&mut self, id: u32) {
        self.timers.retain(|timer| timer.id != id);
    }

    /// Takes all timers, which the caller deletes.
    pub fn take_timers(&mut self) -> alloc::vec::Vec<Timer> {
        core::mem::take(&mut self.timers)
    }

    /// Queues a signal that the base sent to the process with this id. Returns the thread to wake,
    /// if any.
    pub fn send_from_base(&mut self, sent: &lwk::Signal, pid: u64) -> Option<Arc<ThreadHandle>> {
        let info = Info::from_base(sent)?;
        if info.code == Info::TIMER && self.timer(&info).is_none() {
            // It was deleted meanwhile, also by execve(2). What it meant a thread for would find another.
            return None;
        }
        let to = self.is_to_thread(&info, pid).then_some(sent.thread.into());
        // The queue may be full, as on Linux.
        self.send(to, info).ok().flatten()
    }

    /// The timer that has sent a signal, as long as there is it.
    fn timer(&self, info: &Info) -> Option<&Timer> {
        self.timers.iter().find(|timer| timer.id == info.sender())
    }

    /// Whether a signal is directed at the thread of the proxy that received it: the base does not
    /// say so, but the signal's origin does.
    fn is_to_thread(&self, info: &Info, pid: u64) -> bool {
        let is_own = u64::from(info.sender()) == pid;
        match info.code {
            Info::TKILL => true,
            Info::TIMER => self.timer(info).is_some_and(|timer| timer.to_thread),
            // Caused by a call of the thread. Signals that the program sends itself do not come
            // from the base.
            Info::USER => is_own && matches!(info.signal, number::PIPE | number::XFSZ),
            _ => false,
        }
    }
}

//! Signals that the base has for a program: what they tell, and whether they are one thread's.

use alloc::sync::Arc;

use insula_abi::lwk;

use super::{Info, Notice, SIGNALS, Signals, number};
use crate::memory::reserve_in;
use crate::process::errno::Errno;

/// A timer of the program's, which the base keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Its number.
    pub id: u32,
    /// It sends its signal to one thread.
    pub for_thread: bool,
}

impl Info {
    /// What the base tells of a signal; none if there is no such signal.
    #[must_use]
    pub fn from_sent(sent: &lwk::Signal) -> Option<Self> {
        let signal = u32::try_from(sent.signal).ok()?;
        (1..=SIGNALS).contains(&signal).then_some(Self {
            signal,
            errno: sent.error,
            code: sent.code,
            fields: sent.fields,
        })
    }

    /// The lower half of the first field: who sent it, or which timer.
    fn sender(&self) -> u32 {
        self.fields[0] as u32
    }
}

impl Signals {
    /// Makes room to note another timer.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if a program may not have the kernel keep more.
    pub fn reserve_timer(&mut self) -> Result<(), Errno> {
        reserve_in(&mut self.timers, 1).map_err(|_| Errno::EAGAIN)
    }

    /// Notes a timer, for which there is room: see [`Signals::reserve_timer`].
    pub fn add_timer(&mut self, timer: Timer) {
        self.remove_timer(timer.id);
        self.timers.push(timer);
    }

    /// Forgets a timer.
    pub fn remove_timer(&mut self, id: u32) {
        self.timers.retain(|timer| timer.id != id);
    }

    /// Takes the timers out, all of which are to be no more.
    pub fn take_timers(&mut self) -> alloc::vec::Vec<Timer> {
        core::mem::take(&mut self.timers)
    }

    /// A signal has come from the base to the process of this id. Who was told of it, if anybody.
    pub fn post_sent(&mut self, sent: &lwk::Signal, pid: u64) -> Option<Arc<Notice>> {
        let info = Info::from_sent(sent)?;
        let to = self.is_for_thread(&info, pid).then_some(sent.thread.into());
        // There may be as many waiting as a program can have.
        self.post(to, info).ok().flatten()
    }

    /// Whether a signal is that of the thread of the base that it came to: the base does not say whom
    /// one was meant for, but by its origin it is known.
    fn is_for_thread(&self, info: &Info, pid: u64) -> bool {
        let is_own = u64::from(info.sender()) == pid;
        match info.code {
            Info::TKILL => true,
            Info::TIMER => {
                let mut timers = self.timers.iter();
                timers.any(|timer| timer.id == info.sender() && timer.for_thread)
            }
            // Of a call that the thread makes; what the program sends to itself does not come this way.
            Info::USER => is_own && matches!(info.signal, number::PIPE | number::XFSZ),
            _ => false,
        }
    }
}

//! What sockets of a network server are ready for, and what programs want to know of it.

use core::sync::atomic::{AtomicU32, Ordering};

use insula_abi::net::ready;

/// What is always reported (poll(2), epoll_ctl(2)).
pub const ALWAYS: u32 = ready::ERROR | ready::HUP;
/// `EPOLLONESHOT`.
const ONCE: u32 = 1 << 30;
/// `EPOLLET`.
const BY_EDGE: u32 = 1 << 31;
/// Bits of `struct epoll_event` that say what is wanted.
const WANTED: u32 = 0xffff;

/// Returns bits of poll(2) with those that stand for the same: data and room of the usual kind
/// (`POLLRDNORM`, `POLLWRNORM`).
#[must_use]
pub const fn with_aliases(ready: u32) -> u32 {
    const READ: u32 = 0x40;
    const WRITE: u32 = 0x100;
    let read = if ready & ready::IN != 0 { READ } else { 0 };
    let write = if ready & ready::OUT != 0 { WRITE } else { 0 };
    ready | read | write
}

/// What a socket is ready for, and how often that has changed.
#[derive(Debug, Default)]
pub struct Readiness {
    ready: AtomicU32,
    /// How often something has arrived, and how often there was room again.
    arrivals: AtomicU32,
    rooms: AtomicU32,
}

impl Readiness {
    /// Returns the bits of poll(2).
    #[must_use]
    pub fn get(&self) -> u32 {
        self.ready.load(Ordering::Acquire)
    }

    /// Sets them. `edges`: what has happened, even if it was ready for that before. Returns whether
    /// somebody who waits may go on.
    pub fn set(&self, ready: u32, edges: u32) -> bool {
        let before = self.ready.swap(ready, Ordering::AcqRel);
        let news = ready & !before | edges;
        if news & !ready::OUT != 0 {
            self.arrivals.fetch_add(1, Ordering::AcqRel);
        }
        if news & !ready::IN != 0 {
            self.rooms.fetch_add(1, Ordering::AcqRel);
        }
        news != 0
    }

    fn changes(&self) -> [u32; 2] {
        [&self.arrivals, &self.rooms].map(|counter| counter.load(Ordering::Acquire))
    }
}

/// What a program wants to know of a socket by an epoll instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    events: u32,
    /// What it is told then.
    pub data: u64,
    /// The changes of which it has been told; `None` for none.
    seen: Option<[u32; 2]>,
    is_off: bool,
}

impl Interest {
    /// Creates one, of `struct epoll_event`.
    #[must_use]
    pub fn new(events: u32, data: u64) -> Self {
        Self {
            events,
            data,
            seen: None,
            is_off: false,
        }
    }

    /// Returns the events that are to be reported.
    #[must_use]
    pub fn due(&self, of: &Readiness) -> u32 {
        let wanted = self.events & WANTED | ALWAYS;
        if self.is_off {
            return 0;
        }
        let ready = with_aliases(of.get()) & wanted;
        let is_new = match self.seen {
            Some([arrivals, rooms]) if self.events & BY_EDGE != 0 => {
                let [now_arrivals, now_rooms] = of.changes();
                let has_arrived = now_arrivals != arrivals && ready & !ready::OUT != 0;
                has_arrived || now_rooms != rooms && ready & !ready::IN != 0
            }
            _ => true,
        };
        if is_new { ready } else { 0 }
    }

    /// Returns the same, which are reported now.
    pub fn take_due(&mut self, of: &Readiness) -> u32 {
        let changes = of.changes();
        let due = self.due(of);
        if due != 0 {
            self.seen = Some(changes);
            self.is_off = self.events & ONCE != 0;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: u32 = ready::IN;
    const OUT: u32 = ready::OUT;

    #[test]
    fn levels_are_reported_as_long_as_they_last() {
        let socket = Readiness::default();
        let mut interest = Interest::new(IN, 7);
        assert_eq!(interest.take_due(&socket), 0);
        assert!(socket.set(IN | OUT, 0));
        assert_eq!(interest.take_due(&socket), IN);
        assert_eq!(interest.take_due(&socket), IN);
        assert!(!socket.set(OUT, 0));
        assert_eq!(interest.take_due(&socket), 0);
        // Errors are reported, wanted or not.
        socket.set(OUT | ALWAYS, 0);
        assert_eq!(interest.take_due(&socket), ALWAYS);
    }

    #[test]
    fn edges_are_reported_once() {
        let socket = Readiness::default();
        socket.set(OUT, 0);
        let mut interest = Interest::new(IN | OUT | BY_EDGE, 0);
        assert_eq!(interest.take_due(&socket), OUT);
        assert_eq!(interest.take_due(&socket), 0);
        socket.set(IN | OUT, IN);
        assert_eq!(interest.due(&socket), IN | OUT);
        assert_eq!(interest.take_due(&socket), IN | OUT);
        assert_eq!(interest.take_due(&socket), 0);
        // More arrives before all is read.
        assert!(socket.set(IN | OUT, IN));
        assert_eq!(interest.take_due(&socket), IN | OUT);
        // It is read in part, and written.
        socket.set(IN, 0);
        assert_eq!(interest.take_due(&socket), 0);
        socket.set(IN | OUT, 0);
        assert_eq!(interest.take_due(&socket), IN | OUT);
        socket.set(0, 0);
        socket.set(IN, 0);
        assert_eq!(interest.take_due(&socket), IN);
    }

    #[test]
    fn one_shot_interests_end() {
        let socket = Readiness::default();
        let mut interest = Interest::new(IN | ONCE, 0);
        socket.set(IN, IN);
        assert_eq!(interest.take_due(&socket), IN);
        socket.set(IN, IN);
        assert_eq!(interest.take_due(&socket), 0);
        interest = Interest::new(IN | ONCE, 0);
        assert_eq!(interest.take_due(&socket), IN);
    }

    #[test]
    fn aliases_are_reported() {
        let socket = Readiness::default();
        socket.set(IN | OUT, 0);
        let mut interest = Interest::new(0x40 | 0x100, 0);
        assert_eq!(interest.take_due(&socket), 0x140);
    }
}

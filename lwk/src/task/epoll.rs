//! Epoll instances of processes that have a network server.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::model::readiness::{Interest, Readiness};
use crate::task::socket::Socket;

/// What an epoll instance watches of servers; its descriptor is the base's, which watches the rest.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    sockets: spin::Mutex<Watched>,
    /// How many descriptors of the base it has been given.
    others: AtomicU32,
}

/// Sockets of an epoll instance, by descriptor and handle.
#[derive(Debug, Default)]
struct Watched {
    all: BTreeMap<(u32, u64), (Weak<Socket>, Interest)>,
    /// The one that was reported last: others come first the next time.
    last: (u32, u64),
}

impl Epoll {
    /// Adds a socket, by a descriptor. Returns whether it was not there.
    pub(crate) fn add(&self, fd: u32, socket: &Arc<Socket>, interest: Interest) -> bool {
        let mut watched = self.sockets.lock();
        watched.all.retain(|_, (of, _)| of.strong_count() > 0);
        let key = (fd, socket.handle);
        let is_new = !watched.all.contains_key(&key);
        if is_new {
            let entry = (Arc::downgrade(socket), interest);
            watched.all.insert(key, entry);
        }
        is_new
    }

    /// Replaces an interest. Returns whether it was there.
    pub(crate) fn modify(&self, fd: u32, socket: &Socket, interest: Interest) -> bool {
        let mut watched = self.sockets.lock();
        let entry = watched.all.get_mut(&(fd, socket.handle));
        entry.map(|entry| entry.1 = interest).is_some()
    }

    /// Removes a socket. Returns whether it was there.
    pub(crate) fn remove(&self, fd: u32, socket: &Socket) -> bool {
        let mut watched = self.sockets.lock();
        watched.all.remove(&(fd, socket.handle)).is_some()
    }

    /// Notes that the base watches one more descriptor, or one less.
    pub(crate) fn count_other(&self, is_added: bool) {
        let _ = self.others.try_update(
            Ordering::Relaxed,
            Ordering::Relaxed,
            |count| match is_added {
                true => count.checked_add(1),
                false => count.checked_sub(1),
            },
        );
    }

    /// Whether the base watches any descriptor.
    pub(crate) fn has_others(&self) -> bool {
        self.others.load(Ordering::Relaxed) > 0
    }

    /// Whether there are events.
    pub(crate) fn is_ready(&self) -> bool {
        let watched = self.sockets.lock();
        let mut all = watched.all.values();
        all.any(|(of, interest)| with_socket(of, |of| interest.due(of)) != 0)
    }

    /// Takes events and their data, at most so many.
    pub(crate) fn take(&self, most: usize) -> Vec<(u32, u64)> {
        let mut watched = self.sockets.lock();
        let Watched { all, last } = &mut *watched;
        let mut taken = Vec::new();
        let start = *last;
        // Those behind the last one first.
        for is_behind in [true, false] {
            for (key, (of, interest)) in all.iter_mut() {
                if taken.len() == most || (*key > start) != is_behind {
                    continue;
                }
                let due = with_socket(of, |of| interest.take_due(of));
                if due != 0 {
                    taken.push((due, interest.data));
                    *last = *key;
                }
            }
        }
        taken
    }
}

/// Looks at the readiness of a socket, unless that has gone. If its last descriptor goes meanwhile it is
/// released here, which needs no lock that is held.
fn with_socket(socket: &Weak<Socket>, look: impl FnOnce(&Readiness) -> u32) -> u32 {
    socket.upgrade().map_or(0, |socket| look(&socket.readiness))
}

//! The lock for changes of an address space, which is held while the base invalidates a range or
//! forks the proxy.
//!
//! It is a ticket lock: changes are made in the order of their arrival. Waiters are futures, polled
//! by their cores, which are woken when the lock is released.

use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Poll;

/// The lock.
#[derive(Debug, Default)]
pub(crate) struct ChangeLock {
    /// Ticket of the next one who comes.
    next: AtomicU64,
    /// Ticket of the one who holds the lock; equal to `next` if nobody does.
    serving: AtomicU64,
}

impl ChangeLock {
    /// Takes the lock if nobody holds it or waits for it.
    #[must_use]
    pub(crate) fn try_lock(&self) -> bool {
        let ticket = self.serving.load(Ordering::SeqCst);
        self.next
            .compare_exchange(ticket, ticket + 1, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Takes the lock, and waits for it if need be. A future that has been polled must be polled
    /// until it is ready: its ticket will be served.
    pub(crate) async fn lock(&self) {
        let ticket = self.next.fetch_add(1, Ordering::SeqCst);
        let is_served = || self.serving.load(Ordering::SeqCst) == ticket;
        poll_fn(|_| match is_served() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Releases the lock. Returns whether somebody waits for it, whose core has to be woken.
    #[must_use]
    pub(crate) fn unlock(&self) -> bool {
        let next = self.serving.fetch_add(1, Ordering::SeqCst) + 1;
        self.next.load(Ordering::SeqCst) != next
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_ready(future: &mut Pin<Box<impl Future<Output = ()>>>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        future.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn the_lock_is_taken_in_the_order_of_arrival() {
        let lock = ChangeLock::default();
        assert!(lock.try_lock());
        let (mut first, mut second) = (Box::pin(lock.lock()), Box::pin(lock.lock()));
        assert!(!is_ready(&mut first) && !is_ready(&mut second));
        assert!(lock.unlock(), "two wait");
        // Nobody overtakes who waits.
        assert!(!lock.try_lock() && !is_ready(&mut second));
        assert!(is_ready(&mut first));
        assert!(!lock.try_lock() && !is_ready(&mut second));
        assert!(lock.unlock(), "one waits");
        assert!(is_ready(&mut second));
        assert!(!lock.unlock(), "nobody waits");
        assert!(lock.try_lock());
        assert!(!lock.unlock());
    }

    #[test]
    fn one_at_a_time_changes() {
        const CHANGES: u64 = 2_000;
        let (lock, changing) = (ChangeLock::default(), AtomicU64::new(0));
        let done = AtomicU64::new(0);
        let change = |tries: bool| {
            for _ in 0..CHANGES {
                if !(tries && lock.try_lock()) {
                    let mut locked = Box::pin(lock.lock());
                    while !is_ready(&mut locked) {
                        std::thread::yield_now();
                    }
                }
                assert_eq!(changing.fetch_add(1, Ordering::SeqCst), 0);
                done.fetch_add(1, Ordering::SeqCst);
                changing.fetch_sub(1, Ordering::SeqCst);
                let _ = lock.unlock();
            }
        };
        std::thread::scope(|scope| {
            for number in 0..4 {
                let change = &change;
                scope.spawn(move || change(number % 2 == 0));
            }
        });
        assert_eq!(done.load(Ordering::SeqCst), 4 * CHANGES);
    }
}

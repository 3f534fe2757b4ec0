//! Guards of spin locks, kept out of futures.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// A guard of a spin lock. It cannot be sent, so a future that waits while it holds one is not
/// `Send`, and the compiler refuses it as a handler: other threads of the core would spin for the
/// lock forever.
#[derive(Debug)]
pub struct SpinGuard<G> {
    guard: G,
    not_send: PhantomData<*const ()>,
}

impl<G> SpinGuard<G> {
    /// Wraps a lock's own guard.
    pub(super) fn new(guard: G) -> Self {
        Self {
            guard,
            not_send: PhantomData,
        }
    }
}

impl<G: Deref> Deref for SpinGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for SpinGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

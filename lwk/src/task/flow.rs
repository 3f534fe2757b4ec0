//! What becomes of a thread that has entered the kernel, and handlers, which may wait for the base.

use alloc::boxed::Box;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use crate::task::thread::Thread;

/// Maximum size of a handler, in bytes: the kernel memory that a thread needs includes it.
const HANDLER_MAX: usize = 8 << 10;

/// What a core does with a thread that has entered the kernel.
#[derive(Debug)]
pub enum Flow {
    /// Continue it.
    Continue(Box<Thread>),
    /// Continue it after other ready threads have run.
    Yield(Box<Thread>),
    /// A thread of higher priority runs first.
    Preempted(Box<Thread>),
    /// Wait for the base's reply in its syscall slot.
    Delegated(Box<Thread>),
    /// Run the handler that owns it.
    Handler(Handler),
    /// It is queued where another thread or core will find it.
    Blocked,
    /// Likewise, and this thread of the same core runs at once.
    Switch(Box<Thread>),
    /// It has exited.
    Exit(Box<Thread>),
}

impl Flow {
    /// Has a handler deal with the thread that runs on the calling core. While the handler waits,
    /// the core runs other threads, so the processor's extended state is not this thread's any
    /// more: a handler uses only the saved one, which is loaded before the thread runs on.
    pub fn handler<F>(mut thread: Box<Thread>, handler: impl FnOnce(Box<Thread>) -> F) -> Self
    where
        F: Future<Output = Self> + Send + 'static,
    {
        const {
            assert!(size_of::<F>() <= HANDLER_MAX);
        }
        thread.extended.save();
        Self::Handler(Handler(Box::pin(handler(thread))))
    }
}

/// A future that owns a thread, does something for it that may need the base, and says how the
/// thread goes on. Its core polls it until it is ready; it is never dropped before, as it may have
/// a call of the thread under way.
pub struct Handler(Pin<Box<dyn Future<Output = Flow> + Send>>);

impl Handler {
    /// Runs it until it is ready or has to wait. It is polled whenever the core looks after its
    /// waiting threads, so it needs no waker.
    pub(crate) fn poll(&mut self) -> Poll<Flow> {
        self.0
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Handler")
    }
}

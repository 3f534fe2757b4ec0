//! What becomes of a call.

use alloc::boxed::Box;

use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// What becomes of a call.
pub(crate) enum Routed {
    /// A server's.
    Server(Flow),
    /// It goes its usual way.
    Base(Box<Thread>),
}

/// A call's arguments.
pub(in crate::syscall) type Arguments = [u64; 6];

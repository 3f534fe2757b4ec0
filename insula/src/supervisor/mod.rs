//! The supervisor: one small process for each node, as conmon is for a container.
//!
//! It holds a descriptor of the node, for which the module keeps the node's cores when it ends. It
//! waits for that end, looks about once a second whether the node crashed, halted or hangs, and
//! does what the node's [`policy`](crate::policy) says. There is no central daemon and no state
//! beside the module's: a supervisor that is killed leaves its node running, and whoever does
//! something to the node next starts another, which goes on where that one was. Looking at a node
//! (`ps`, `inspect`, `logs`, ...) does nothing to it.
//!
//! It ends when its node has ended for good.

mod attend;
mod hand_over;
mod journal;
mod leaving;
mod sight;

pub use attend::{SuperviseError, supervise};
pub use hand_over::{HandOverError, attach, restart, run};

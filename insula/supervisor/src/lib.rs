//! The supervisor: one small process for each node, as conmon is for a container.
//!
//! It holds a descriptor of the node; while it does, the module keeps the node's cores for a
//! restart. It waits for the node's end, probes its health about once a second, and applies the
//! node's [`policy`](insula_node::policy). There is no central daemon and no state beside the
//! module's: if a supervisor is killed, its node runs on, and the next command that changes the node
//! spawns another one. Commands that only read (`ps`, `inspect`, `logs`, ...) do not.
//!
//! It exits when its node has ended for good.

mod clock;
mod ending;
mod health;
mod journal;
mod known;
mod names;
mod process;
mod run_loop;
mod spawn;
mod watch;
mod watcher_process;

pub use run_loop::supervise;
pub use spawn::{ensure_supervised, restart, run};

//! Watching kernels from outside.

pub(super) mod base_reset;
mod faults;
mod many_faults;
mod supervised;
pub(super) mod watch;
pub(super) mod watch_base;
pub(super) mod watch_shared_core;
pub(super) mod watch_work;
mod watcher_process;

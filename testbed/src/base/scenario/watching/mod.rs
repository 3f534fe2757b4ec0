//! Watching kernels from outside.

mod supervised;
pub(super) mod watch;
pub(super) mod watch_base;
mod watcher_process;

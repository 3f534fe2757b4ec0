//! Processes: copies, execve, signals, job control and ends.

pub(super) mod close_on_exec;
pub(super) mod executable;
pub(super) mod jobs;
pub(super) mod late_replies;
pub(super) mod mass_kill;
pub(super) mod restarts;
pub(super) mod sharing;
pub(super) mod signal_files;
pub(super) mod signals;

//! Entries of programs to the kernel: system calls and exceptions; signals before the return.

pub mod call;
pub(crate) mod clone;
pub(crate) mod clone_arguments;
pub(crate) mod deadline;
pub(crate) mod delegate;
pub mod dispatch;
pub mod exception;
pub(crate) mod exec;
pub(crate) mod exit;
pub(crate) mod file_mapping;
pub(crate) mod files;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod prctl;
pub(crate) mod proxy_mask;
pub(crate) mod scheduling;
pub mod signal_delivery;
pub mod signals;
pub mod table;
pub(crate) mod threads;
pub(crate) mod time;
pub(crate) mod timeouts;
pub(crate) mod timers;

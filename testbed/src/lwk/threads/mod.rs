//! Threads: scheduling, registers and synchronisation.

pub(super) mod balance;
pub(super) mod priorities;
pub(super) mod registers;
pub(super) mod robust_locks;
pub(super) mod rseq;
pub(super) mod synchronisation;

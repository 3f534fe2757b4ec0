//! Files that are complete or absent, however their writer ends.
//!
//! A [`Lock`] keeps two commands apart; an [`AtomicFile`] gets its name when all of it is on the
//! disk.

mod atomic_file;
mod lock;

pub use atomic_file::AtomicFile;
pub use lock::{Lock, RUN, lock, lock_shared, try_lock};

//! What is written to files, so that it is whole or not there whatever ends the writer.
//!
//! A [`Lock`] keeps two commands apart; a [`Pending`] file gets its name when all of it is on the
//! disk.

mod lock;
mod pending;

pub(crate) use lock::RUN;
pub use lock::{Lock, lock, try_lock};
pub use pending::Pending;

//! Files and block devices of the base that nodes have as disks.
//!
//! One medium has many names: a path and its links, a loop device and its backing file, a partition
//! and its disk. [`Medium`] tells whether two names lead to the same bytes, [`uses`] who in the
//! base uses them, and a [`Lock`] keeps all others from writing to them. The [`Identity`] of a file stays
//! when its path becomes another's.

mod identity;
mod lock;
mod medium;
mod usage;

pub use identity::{Identity, NoIdentity};
pub use lock::{Lock, LockError};
pub use medium::Medium;
pub use usage::{Use, uses};

//! Numbers by which servers know what programs have open.

use core::sync::atomic::{AtomicU64, Ordering};

static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns a number that was never used before.
pub(crate) fn next() -> u64 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

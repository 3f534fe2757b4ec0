//! What other cores and the module ask of a core: bits of a word in its area, followed by an NMI, which
//! makes its guest exit.
//!
//! An INIT and the start-up IPI after it are asked for one after the other, perhaps before the core looks:
//! they are carried out in this order. NMIs may merge, bits do not get lost.

use core::sync::atomic::{AtomicU64, Ordering};

use insula_abi::monitor::{REQUEST_STARTUP, STARTUP_SHIFT};

/// Requests taken from a core's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests(u64);

impl Requests {
    /// Takes all requests.
    #[must_use]
    pub fn take(word: &AtomicU64) -> Self {
        Self(word.swap(0, Ordering::AcqRel))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `request`, a `REQUEST_*`, is among them.
    #[must_use]
    pub fn has(self, request: u64) -> bool {
        self.0 & request != 0
    }

    /// The page number of a start-up IPI.
    #[must_use]
    pub fn startup(self) -> Option<u8> {
        self.has(REQUEST_STARTUP)
            .then_some((self.0 >> STARTUP_SHIFT) as u8)
    }
}

/// Adds a request, other than for a start-up IPI.
pub fn add(word: &AtomicU64, request: u64) {
    word.fetch_or(request, Ordering::AcqRel);
}

/// Adds a start-up IPI. Of several, the last one counts.
pub fn add_startup(word: &AtomicU64, page: u8) {
    let vector = 0xff << STARTUP_SHIFT;
    let new = REQUEST_STARTUP | u64::from(page) << STARTUP_SHIFT;
    let replace = |requests: u64| Some(requests & !vector | new);
    // The closure never refuses.
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, replace);
}

#[cfg(test)]
mod tests {
    use insula_abi::monitor::{REQUEST_INIT, REQUEST_NMI};

    use super::*;

    #[test]
    fn requests_add_up_until_they_are_taken() {
        let word = AtomicU64::new(0);
        assert!(Requests::take(&word).is_empty());
        add(&word, REQUEST_INIT);
        add_startup(&word, 0x9a);
        let taken = Requests::take(&word);
        assert!(taken.has(REQUEST_INIT) && !taken.has(REQUEST_NMI));
        assert_eq!(taken.startup(), Some(0x9a));
        assert!(Requests::take(&word).is_empty());
    }

    #[test]
    fn the_last_page_counts() {
        let word = AtomicU64::new(0);
        add_startup(&word, 0xff);
        add_startup(&word, 0x10);
        assert_eq!(Requests::take(&word).startup(), Some(0x10));
    }
}

//! What other cores and the module ask of a core: bits of a word in its area, followed by an NMI, which
//! makes its guest exit.
//!
//! What is asked for a guest that is paused is kept in the word until it is resumed.
//!
//! An INIT and the start-up IPI after it are asked for one after the other, perhaps before the core looks:
//! they are carried out in this order. NMIs may merge, bits do not get lost.

use core::sync::atomic::{AtomicU64, Ordering};

use insula_abi::monitor::{REQUEST_INIT, REQUEST_NMI, REQUEST_STARTUP, STARTUP_SHIFT};

/// The vector of a start-up IPI.
const STARTUP_VECTOR: u64 = 0xff << STARTUP_SHIFT;

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
    let new = REQUEST_STARTUP | u64::from(page) << STARTUP_SHIFT;
    update(word, |requests| requests & !STARTUP_VECTOR | new);
}

/// Puts those of `taken` back that are for the guest. A start-up IPI that came since then counts.
pub fn keep(word: &AtomicU64, taken: Requests) {
    update(word, |since| {
        let replaced = match Requests(since).startup() {
            Some(_) => REQUEST_STARTUP | STARTUP_VECTOR,
            None => 0,
        };
        let for_guest = REQUEST_INIT | REQUEST_NMI | REQUEST_STARTUP | STARTUP_VECTOR;
        since | taken.0 & for_guest & !replaced
    });
}

fn update(word: &AtomicU64, new: impl Fn(u64) -> u64) {
    // The closure never refuses.
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |old| Some(new(old)));
}

#[cfg(test)]
mod tests {
    use insula_abi::monitor::{REQUEST_FLUSH, REQUEST_PAUSE};

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
    fn what_is_for_a_paused_guest_is_kept() {
        let word = AtomicU64::new(0);
        add(&word, REQUEST_INIT | REQUEST_PAUSE | REQUEST_FLUSH);
        add_startup(&word, 0x9a);
        keep(&word, Requests::take(&word));
        let kept = Requests::take(&word);
        assert!(kept.has(REQUEST_INIT) && !kept.has(REQUEST_PAUSE | REQUEST_FLUSH));
        assert_eq!(kept.startup(), Some(0x9a));
        // The core is asked again before it has put them back.
        add_startup(&word, 0x10);
        add(&word, REQUEST_NMI);
        keep(&word, kept);
        let kept = Requests::take(&word);
        assert!(kept.has(REQUEST_INIT) && kept.has(REQUEST_NMI));
        assert_eq!(kept.startup(), Some(0x10));
    }

    #[test]
    fn the_last_page_counts() {
        let word = AtomicU64::new(0);
        add_startup(&word, 0xff);
        add_startup(&word, 0x10);
        assert_eq!(Requests::take(&word).startup(), Some(0x10));
    }
}

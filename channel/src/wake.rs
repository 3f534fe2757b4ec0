//! Requests for wake-ups.
//!
//! The sleeper stores its wake word, then checks the ring again; the other side advances the ring,
//! then checks the wake word. Both have a full fence in between, so at least one sees the other's
//! store.

use insula_abi::channel::WAKE_ASLEEP;

use crate::ring::{ControlWord, Ring};
use crate::sync::{Ordering, fence};
use crate::words::Words;

/// Whether the peer waits for the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a sleeping peer must be woken"]
pub enum Peer {
    /// It is awake, or waits for another step.
    Awake,
    /// It must be woken.
    Asleep,
}

impl Peer {
    /// Whether it must be woken.
    #[must_use]
    pub fn asleep(self) -> bool {
        self == Self::Asleep
    }
}

/// Requests a wake-up at `position`. The caller checks the ring again before it sleeps.
pub(crate) fn request<W: Words>(ring: &Ring<W>, word: ControlWord, position: u32) {
    ring.store_control(word, WAKE_ASLEEP | u64::from(position), Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Cancels the request.
pub(crate) fn cancel<W: Words>(ring: &Ring<W>, word: ControlWord) {
    ring.store_control(word, 0, Ordering::Relaxed);
}

/// Checks whether the peer sleeps at one of the `count` positions from `from` on, which the caller
/// has just completed.
pub(crate) fn check<W: Words>(ring: &Ring<W>, word: ControlWord, from: u32, count: u32) -> Peer {
    fence(Ordering::SeqCst);
    let wake = ring.load_control(word, Ordering::Relaxed);
    let position = (wake & !WAKE_ASLEEP) as u32;
    if wake & WAKE_ASLEEP != 0 && position.wrapping_sub(from) < count {
        Peer::Asleep
    } else {
        Peer::Awake
    }
}

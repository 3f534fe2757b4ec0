//! Who sleeps, who rings.
//!
//! The sleeper stores its wake word, then looks again; the other side makes its step, then looks at
//! the wake word. Between the two stands a full fence on either side, so at least one of them sees
//! the other.

use insula_abi::channel::WAKE_ASLEEP;

use crate::ring::{ControlWord, Ring};
use crate::sync::{Ordering, fence};
use crate::words::Words;

/// Whether the peer waits for the step that was just made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a peer that is asleep has to be rung"]
pub enum Peer {
    /// It is awake, or waits for something else.
    Awake,
    /// It is to be rung.
    Asleep,
}

impl Peer {
    /// Whether it is to be rung.
    #[must_use]
    pub fn asleep(self) -> bool {
        self == Self::Asleep
    }
}

/// Tells the peer that we sleep at `position`. The caller looks again before it does.
pub(crate) fn announce<W: Words>(ring: &Ring<W>, word: ControlWord, position: u32) {
    ring.store_control(word, WAKE_ASLEEP | u64::from(position), Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Tells the peer that we are awake.
pub(crate) fn cancel<W: Words>(ring: &Ring<W>, word: ControlWord) {
    ring.store_control(word, 0, Ordering::Relaxed);
}

/// Whether the peer sleeps at one of `count` positions from `from` on, which our step, made just
/// now, has covered.
pub(crate) fn look<W: Words>(ring: &Ring<W>, word: ControlWord, from: u32, count: u32) -> Peer {
    fence(Ordering::SeqCst);
    let wake = ring.load_control(word, Ordering::Relaxed);
    let position = (wake & !WAKE_ASLEEP) as u32;
    if wake & WAKE_ASLEEP != 0 && position.wrapping_sub(from) < count {
        Peer::Asleep
    } else {
        Peer::Awake
    }
}

//! Network cards, as the stack has them.

use std::fmt;

/// Most bytes of a frame, without its checksum.
pub const FRAME_MAX: usize = 1514;

/// A network card.
pub trait Nic {
    /// Why it cannot be used any more.
    type Error: fmt::Display;

    /// Returns its address.
    fn address(&self) -> [u8; 6];

    /// Takes the next frame that has arrived, if there is one, in place of what `to` contains.
    ///
    /// # Errors
    /// The card is not used any more.
    fn receive(&mut self, to: &mut Vec<u8>) -> Result<bool, Self::Error>;

    /// Whether a frame can be sent.
    fn has_room(&self) -> bool;

    /// Sends a frame, when the card is told to. It is lost if there is no room.
    fn send(&mut self, frame: &[u8]);

    /// Has the card send frames, and take what arrives.
    ///
    /// # Errors
    /// As of [`Nic::receive`].
    fn flush(&mut self) -> Result<(), Self::Error>;

    /// Whether the card can interrupt when a frame arrives.
    fn can_interrupt(&self) -> bool {
        false
    }

    /// Has the card interrupt when the next frame arrives, or not any more. Returns whether it will: not if a frame
    /// is there already.
    fn expect_interrupt(&mut self, is_expected: bool) -> bool {
        let _ = is_expected;
        false
    }

    /// Looks whether the card works.
    ///
    /// # Errors
    /// As of [`Nic::receive`].
    fn check(&self) -> Result<(), Self::Error>;
}

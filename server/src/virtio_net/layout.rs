//! Where a virtio function has its registers (4.1.4): capabilities in its configuration space say so.

use nix::errno::Errno;

use super::error::Error;

/// The BAR with all registers: QEMU's, and that of all functions which the specification's own driver
/// of Linux was seen with.
pub const BAR: usize = 4;
/// Bytes of it that the driver maps, if there are as many.
pub const REGISTER_BYTES: u64 = 0x4000;

/// Offsets of registers in the BAR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Those that all virtio devices have.
    pub(super) common: usize,
    /// Those by which a device is told of changes to its queues, and how far they are apart.
    pub(super) notify: usize,
    pub(super) notify_distance: usize,
    /// Those of network cards.
    pub(super) card: usize,
}

/// Kinds of capabilities.
const COMMON: u32 = 1;
const NOTIFY: u32 = 2;
const CARD: u32 = 4;

impl Layout {
    /// Reads it. `word` reads a word of configuration space.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Malformed`], and those of `word`.
    pub fn read(mut word: impl FnMut(u64) -> Result<u32, Errno>) -> Result<Self, Error> {
        const FIRST: u64 = 0x34;
        /// A list of more would be a circle.
        const MOST: usize = 64;
        const VENDOR_SPECIFIC: u32 = 9;
        let mut layout = Self::default();
        let mut found = 0;
        let mut at = word(FIRST)? & 0xfc;
        for _ in 0..MOST {
            if at == 0 {
                return match found == 1 << COMMON | 1 << NOTIFY | 1 << CARD {
                    true => Ok(layout),
                    false => Err(Error::Unsupported("it has no registers of virtio 1.0")),
                };
            }
            let head = word(at.into())?;
            if head & 0xff == VENDOR_SPECIFIC {
                found |= layout.take(head >> 24, at, &mut word)?;
            }
            at = head >> 8 & 0xfc;
        }
        Err(Error::Malformed("its capabilities have no end"))
    }

    /// Takes over a capability. Returns a bit for its kind, if it has been needed.
    fn take(
        &mut self,
        kind: u32,
        at: u32,
        word: &mut impl FnMut(u64) -> Result<u32, Errno>,
    ) -> Result<u32, Error> {
        let mut part = |offset: u32| word(u64::from(at + offset));
        let (bar, offset) = (part(4)? & 0xff, part(8)? as usize);
        let place = match kind {
            COMMON => &mut self.common,
            NOTIFY => {
                self.notify_distance = part(16)? as usize;
                &mut self.notify
            }
            CARD => &mut self.card,
            _ => return Ok(0),
        };
        if bar as usize != BAR {
            return Err(Error::Unsupported("its registers are not in BAR 4"));
        }
        *place = offset;
        Ok(1 << kind)
    }
}

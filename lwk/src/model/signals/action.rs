//! Actions for signals.

use crate::model::signals::set::{Set, UNBLOCKABLE};

/// Action for a signal: the kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Address of the handler, [`Action::DEFAULT`] or [`Action::IGNORE`].
    pub handler: u64,
    /// Flags, see below.
    pub flags: u64,
    /// Return address of the handler.
    pub restorer: u64,
    /// Signals blocked while the handler runs.
    pub mask: Set,
}

impl Action {
    /// `SIG_DFL`.
    pub const DEFAULT: u64 = 0;
    /// `SIG_IGN`.
    pub const IGNORE: u64 = 1;
    /// `SA_RESTORER`: a restorer is given, as required on x86-64.
    pub const RESTORER: u64 = 0x0400_0000;
    /// `SA_ONSTACK`: run on the alternate stack.
    pub const ON_STACK: u64 = 0x0800_0000;
    /// `SA_RESTART`: restart the interrupted call.
    pub const RESTART: u64 = 0x1000_0000;
    /// `SA_NODEFER`: do not block the signal itself.
    pub const NO_DEFER: u64 = 0x4000_0000;
    /// `SA_RESETHAND`: reset to the default before the handler runs.
    pub const RESET: u64 = 0x8000_0000;
    /// Size in the program's memory, in bytes.
    pub const SIZE: usize = 32;

    /// Decodes it from the program's memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let word =
            |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
        Self {
            handler: word(0),
            flags: word(1),
            restorer: word(2),
            mask: word(3) & !UNBLOCKABLE,
        }
    }

    /// Encodes it for the program's memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let words = [self.handler, self.flags, self.restorer, self.mask].map(u64::to_le_bytes);
        core::array::from_fn(|at| words[at / 8][at % 8])
    }
}

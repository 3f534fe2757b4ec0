//! Information about a signal.
//!
//! Source: include/uapi/asm-generic/siginfo.h of Linux.

/// Information about a signal: the used part of `siginfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// `si_signo`.
    pub signal: u32,
    /// `si_errno`.
    pub errno: i32,
    /// `si_code`: origin or reason.
    pub code: i32,
    /// Sender and value, or an address.
    pub fields: [u64; 4],
}

impl Info {
    /// `SI_USER`: by kill(2).
    pub const USER: i32 = 0;
    /// `SI_KERNEL`.
    pub const KERNEL: i32 = 0x80;
    /// `SI_TIMER`: by a POSIX timer.
    pub const TIMER: i32 = -2;
    /// `SI_TKILL`: by tgkill(2).
    pub const TKILL: i32 = -6;
    /// Size in the program's memory, in bytes.
    pub const SIZE: usize = 48;

    /// Describes a signal sent by a process.
    #[must_use]
    pub fn sent(signal: u32, code: i32, pid: u64, uid: u64) -> Self {
        Self {
            signal,
            errno: 0,
            code,
            fields: [pid & 0xffff_ffff | uid << 32, 0, 0, 0],
        }
    }

    /// Describes a signal raised by an instruction.
    #[must_use]
    pub fn fault(signal: u32, code: i32, address: u64) -> Self {
        Self {
            signal,
            errno: 0,
            code,
            fields: [address, 0, 0, 0],
        }
    }

    /// Decodes it from the program's memory.
    #[must_use]
    pub fn from_bytes(signal: u32, bytes: &[u8; Self::SIZE]) -> Self {
        let half = |at: usize| i32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            signal,
            errno: half(4),
            code: half(8),
            fields: [16, 24, 32, 40].map(word),
        }
    }

    /// Encodes it for the program's memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let signal = (self.signal as i32).to_le_bytes();
        for (at, half) in [
            (0, signal),
            (4, self.errno.to_le_bytes()),
            (8, self.code.to_le_bytes()),
        ] {
            bytes[at..at + 4].copy_from_slice(&half);
        }
        for (place, word) in bytes[16..].chunks_exact_mut(8).zip(self.fields) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

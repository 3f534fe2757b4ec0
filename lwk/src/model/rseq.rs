//! Restartable sequences: what a program registers, and its critical sections.
//!
//! Source: rseq(2) of Linux, its include/uapi/linux/rseq.h.

/// Size of the first version of `struct rseq`, in bytes.
pub const SIZE_MIN: u32 = 32;
/// Size of the fields that this kernel supports, and the alignment; both are in the auxiliary
/// vector.
pub const FEATURES_SIZE: u64 = 28;
/// See above.
pub const ALIGNMENT: u64 = 32;

/// A registered `struct rseq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Address.
    pub area: u64,
    /// Bytes.
    pub size: u32,
    /// Signature before each abort handler.
    pub signature: u32,
}

/// A critical section: `struct rseq_cs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    start: u64,
    size: u64,
    pub(crate) abort: u64,
}

impl Sequence {
    /// Size in the program's memory, in bytes.
    pub(crate) const BYTES: usize = 32;

    /// Decodes it from the program's memory; `None` if it is invalid.
    pub(crate) fn read(bytes: &[u8; Self::BYTES], end: u64) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let sequence = Self {
            start: word(8),
            size: word(16),
            abort: word(24),
        };
        let last = sequence.start.checked_add(sequence.size)?;
        let is_version_0 = bytes[..4] == [0; 4];
        let is_sound = is_version_0 && last < end && sequence.abort < end;
        (is_sound && !sequence.holds(sequence.abort)).then_some(sequence)
    }

    /// Whether an instruction is in it.
    pub(crate) fn holds(&self, at: u64) -> bool {
        at.wrapping_sub(self.start) < self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(version: u32, words: [u64; 3]) -> [u8; Sequence::BYTES] {
        let head = u64::from(version).to_le_bytes();
        let words = words.map(u64::to_le_bytes);
        core::array::from_fn(|at| match at {
            0..8 => head[at],
            at => words[at / 8 - 1][at % 8],
        })
    }

    #[test]
    fn critical_sections_are_validated() {
        const END: u64 = 1 << 47;
        let read = |version, words| Sequence::read(&bytes(version, words), END);
        let sequence = read(0, [0x1000, 16, 0x2000]).unwrap();
        let inside = [0xfff, 0x1000, 0x100f, 0x1010].map(|at| sequence.holds(at));
        assert_eq!(inside, [false, true, true, false]);
        for (version, words) in [
            (1, [0x1000, 16, 0x2000]),
            (0, [0x1000, 16, 0x1004]),
            (0, [0x1000, u64::MAX, 0x2000]),
            (0, [0x1000, 16, END]),
            (0, [END, 16, 0x1000]),
        ] {
            assert_eq!(read(version, words), None, "{words:x?}");
        }
    }
}

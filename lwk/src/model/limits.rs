//! Resource limits.

/// Resource limit: `struct rlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Current limit.
    pub soft: u64,
    /// Maximum to which the program may raise the former.
    pub hard: u64,
}

impl Limit {
    /// Decodes it from a program's memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 16]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            soft: word(0),
            hard: word(8),
        }
    }
}

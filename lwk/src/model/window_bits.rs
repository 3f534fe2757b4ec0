//! Bits of windows of the address space, in words: which words, and which of their bits, a range of windows has.

/// Bits of a word.
const WORD_BITS: u64 = 64;

/// Words of a bitmap and the bits in them of a range of windows. A bitmap with fewer bits than there are windows
/// uses each bit for several: window `n` has bit `n % bits`.
#[derive(Clone, Debug)]
pub struct WindowBits {
    /// Bits of the bitmap: a multiple of 64.
    bits: u64,
    /// Bit of the next window.
    at: u64,
    /// Windows that are left; at most one for each bit.
    left: u64,
}

impl WindowBits {
    /// Returns those of the windows from `first` to `last`, in a bitmap of `bits` bits, a multiple of 64.
    #[must_use]
    pub fn of(first: u64, last: u64, bits: u64) -> Self {
        Self {
            bits,
            at: first % bits,
            left: (last - first).saturating_add(1).min(bits),
        }
    }
}

impl Iterator for WindowBits {
    /// Index of a word, and a mask of bits.
    type Item = (usize, u64);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let first = self.at % WORD_BITS;
        let count = self.left.min(WORD_BITS - first);
        let mask = (u64::MAX >> (WORD_BITS - count)) << first;
        let word = self.at / WORD_BITS;
        self.at = (self.at + count) % self.bits;
        self.left -= count;
        Some((word as usize, mask))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::WindowBits;

    const BITS: u64 = 256;

    proptest! {
        #[test]
        fn all_windows_of_a_range_and_no_other(first: u64, size in 0..3 * BITS) {
            let last = first.saturating_add(size);
            let mut wanted = [0; BITS as usize / 64];
            for window in (first..=last).take(BITS as usize) {
                wanted[(window % BITS / 64) as usize] |= 1 << (window % 64);
            }
            let mut found = [0; BITS as usize / 64];
            for (word, mask) in WindowBits::of(first, last, BITS) {
                prop_assert_eq!(found[word] & mask, 0);
                found[word] |= mask;
            }
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn whole_range_has_each_word_once() {
        let all: Vec<_> = WindowBits::of(0, u64::MAX, BITS).collect();
        assert_eq!(all, (0..4).map(|word| (word, u64::MAX)).collect::<Vec<_>>());
    }
}

//! Random numbers for address space layout, from the processor and from the base. Not for keys:
//! programs get random bytes for those from the base.

use core::sync::atomic::{AtomicU64, Ordering};

use insula_bare::cpu;

/// The entropy pool.
static ENTROPY: AtomicU64 = AtomicU64::new(0);

/// Mixes secret bytes into the pool.
pub fn mix_in(bytes: &[u8]) {
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let word = u64::from_le_bytes(word);
        let mix_in = |entropy: u64| Some(mix(entropy ^ word));
        let _ = ENTROPY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, mix_in);
    }
}

/// Returns an unpredictable number. Without RDRAND it depends only on the base's bytes and the
/// time: the first program of a node is then laid out by the time alone.
#[must_use]
pub fn word() -> u64 {
    let own = cpu::random().unwrap_or_default() ^ cpu::time_stamp().rotate_left(32);
    mix_in(&own.to_le_bytes());
    mix(ENTROPY.load(Ordering::Relaxed))
}

/// Mixes all bits: the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
/// Number Generators", 2014).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn no_number_is_repeated() {
        let words: BTreeSet<u64> = (0..1000).map(|_| super::word()).collect();
        assert_eq!(words.len(), 1000);
        let bits = words
            .iter()
            .fold((0, u64::MAX), |(any, all), word| (any | word, all & word));
        assert_eq!(bits, (u64::MAX, 0));
    }
}

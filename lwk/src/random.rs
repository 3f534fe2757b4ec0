//! Random numbers by which programs are laid out: from the processor, and from what the base has given.
//! Not for keys: programs get those from the base.

use core::sync::atomic::{AtomicU64, Ordering};

use insula_bare::cpu;

/// What has been stirred in.
static POOL: AtomicU64 = AtomicU64::new(0);

/// Adds what others cannot know.
pub fn stir(bytes: &[u8]) {
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let word = u64::from_le_bytes(word);
        let stir = |pool: u64| Some(mix(pool ^ word));
        let _ = POOL.fetch_update(Ordering::Relaxed, Ordering::Relaxed, stir);
    }
}

/// A number that nobody can guess. On a processor without RDRAND only the base's bytes and the moment
/// make it so: the first program of a node is then laid out by the latter alone.
#[must_use]
pub fn word() -> u64 {
    let own = cpu::random().unwrap_or_default() ^ cpu::time_stamp().rotate_left(32);
    stir(&own.to_le_bytes());
    mix(POOL.load(Ordering::Relaxed))
}

/// Spreads each bit over all: the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable
/// Pseudorandom Number Generators", 2014).
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
    fn no_number_comes_twice() {
        let words: BTreeSet<u64> = (0..1000).map(|_| super::word()).collect();
        assert_eq!(words.len(), 1000);
        let bits = words
            .iter()
            .fold((0, u64::MAX), |(any, all), word| (any | word, all & word));
        assert_eq!(bits, (u64::MAX, 0));
    }
}

//! Numbers at the edges of arithmetic: near 0, each power of two and 2^64.

use fastrand::Rng;
use insula_abi::GRANULE;

/// Distances from such an edge.
const DISTANCES: [u64; 4] = [0, 1, GRANULE - 1, GRANULE];

/// All of them, each once.
pub(super) fn all() -> Vec<u64> {
    let places = (0..u64::BITS).map(|power| 1 << power).chain([0]);
    let mut numbers: Vec<u64> = places
        .flat_map(|edge: u64| {
            DISTANCES.map(|distance| [edge.wrapping_sub(distance), edge.wrapping_add(distance)])
        })
        .flatten()
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// A random one: as often near 0 and 2^64 as near all others.
pub(super) fn any(rng: &mut Rng) -> u64 {
    let edge = if rng.bool() {
        0
    } else {
        1 << rng.u32(..u64::BITS)
    };
    let distance = DISTANCES[rng.usize(..DISTANCES.len())];
    if rng.bool() {
        distance.wrapping_add(edge)
    } else {
        u64::wrapping_sub(edge, distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_near_the_edges() {
        let numbers = all();
        for edge in [
            0,
            1,
            GRANULE,
            1 << 32,
            1 << 63,
            u64::MAX,
            u64::MAX - GRANULE + 1,
        ] {
            assert!(numbers.contains(&edge), "{edge:x}");
        }
        let mut rng = Rng::with_seed(7);
        for _ in 0..2000 {
            let number = any(&mut rng);
            assert!(numbers.contains(&number), "{number:x}");
        }
    }
}

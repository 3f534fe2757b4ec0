//! Fills nearly all memory of a test node, to find out whether it is there and its own.

use std::fs;
use std::io;

/// Size of a piece of memory, in bytes.
const PIECE_BYTES: usize = 1 << 20;
const PIECE_WORDS: usize = PIECE_BYTES / size_of::<u64>();
/// Memory left to the kernel and other programs, in KiB.
const RESERVE_KIB: u64 = 40 << 10;

/// Result of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Filled memory, in MiB.
    pub filled_mib: usize,
    /// MiB whose content differed from what had been written.
    pub bad_mib: usize,
}

/// Allocates memory until the kernel has hardly any left, fills each MiB with words of its own,
/// verifies all of it and frees it.
///
/// # Errors
/// When the kernel does not say how much there is.
pub fn fill() -> io::Result<Filled> {
    let mut pieces = Vec::new();
    while available_kib()? > RESERVE_KIB {
        pieces.push(piece(pieces.len()));
    }
    let bad = |&(number, piece): &(usize, &Vec<u64>)| !is_piece(piece, number);
    Ok(Filled {
        filled_mib: pieces.len(),
        bad_mib: pieces.iter().enumerate().filter(bad).count(),
    })
}

/// Word that occurs nowhere else.
fn word(piece: usize, index: usize) -> u64 {
    ((piece * PIECE_WORDS + index) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn piece(number: usize) -> Vec<u64> {
    (0..PIECE_WORDS).map(|index| word(number, index)).collect()
}

fn is_piece(words: &[u64], number: usize) -> bool {
    let mut numbered = words.iter().enumerate();
    numbered.all(|(index, &found)| found == word(number, index))
}

/// Memory available to programs, in KiB.
fn available_kib() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let mut lines = text.lines();
    let said = lines.find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = said.and_then(|said| said.trim().strip_suffix(" kB")?.parse().ok());
    number.ok_or_else(|| io::Error::other("no MemAvailable in /proc/meminfo"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_distinct() {
        let mut words = piece(3);
        assert!(is_piece(&words, 3));
        assert!(!is_piece(&words, 4));
        words[PIECE_WORDS / 2] ^= 1;
        assert!(!is_piece(&words, 3));
    }
}

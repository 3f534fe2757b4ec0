//! A program that computes: it looks at the pages of a shared file without ever entering the kernel,
//! and answers each question that another process writes there.
//!
//! A page is an array of words: the question, the answer, and the question's pattern. The answer is
//! the question, or [`WRONG`] if a word of the pattern is not what it should be.

use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::lwk::{Named, ProbeError};

/// Size of a page, in bytes and words.
pub(crate) const PAGE: usize = 4096;
pub(crate) const WORDS: usize = PAGE / 8;
/// Places in a page.
pub(crate) const QUESTION: usize = 0;
pub(crate) const ANSWER: usize = 1;
pub(crate) const PATTERN: usize = 2;
/// Answer to a question with a wrong pattern.
pub(crate) const WRONG: u64 = u64::MAX;
/// Question that ends the program.
pub(crate) const END: u64 = u64::MAX - 1;

/// Word of the pattern of a question.
pub(crate) fn pattern(question: u64, page: usize, place: usize) -> u64 {
    let seed = question << 32 | (page as u64) << 16 | place as u64;
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn probe(path: &str) -> Result<(), ProbeError> {
    let io = |error| ProbeError::Wrong(format!("{path}: {error}"));
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len() as usize;
    let size = NonZeroUsize::new(bytes).ok_or(ProbeError::Unknown)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, &file, 0) };
    let start = start.named("mmap")?.cast::<AtomicU64>();
    // SAFETY: it is that large, aligned to pages, never unmapped, and reached as atomics only.
    let words = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes / 8) };
    println!("answers");
    loop {
        for (page, words) in words.chunks_exact(WORDS).enumerate() {
            let question = words[QUESTION].load(Ordering::Acquire);
            if question == END {
                return Ok(());
            }
            if question != words[ANSWER].load(Ordering::Relaxed) {
                words[ANSWER].store(answer(words, page, question), Ordering::Release);
            }
        }
    }
}

/// Checks the pattern of a question.
fn answer(words: &[AtomicU64], page: usize, question: u64) -> u64 {
    let is_right =
        |place: usize| words[place].load(Ordering::Relaxed) == pattern(question, page, place);
    match (PATTERN..WORDS).all(is_right) {
        true => question,
        false => WRONG,
    }
}

//! Random calls on one file whose shared pages are read without asking: reads find what a model has.

use super::calls::{Calls, Outcome, Step};
use super::served::Served;
use crate::files::FileSystem;

const ROUNDS: usize = 4000;
/// Most bytes of a read or write.
const PART: usize = 9000;

/// What the file is to be.
struct Model {
    content: Vec<u8>,
    offset: usize,
}

impl Model {
    fn write(&mut self, at: usize, length: usize, byte: u8) {
        let size = self.content.len().max(at + length);
        self.content.resize(size, 0);
        self.content[at..at + length].fill(byte);
    }

    fn read(&self, at: usize, length: usize) -> Outcome {
        let end = self.content.len().min(at + length);
        Outcome::Bytes(self.content.get(at..end).unwrap_or_default().to_vec())
    }
}

fn fill(served: &mut impl Calls, model: &mut Model, size: usize) {
    for at in (0..size).step_by(PART) {
        let byte = (at / PART) as u8;
        served.play(&Step::WriteAt(0, at as i64, PART, byte));
        model.write(at, PART, byte);
    }
}

/// Fills a file of that size, then writes, cuts, empties and reads it. Returns how many of the reads were unasked.
pub(crate) fn play(system: impl FileSystem, size: usize) -> usize {
    let mut served = Served::cached(system);
    let mut random = 7_usize;
    let mut next = |most: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) % most
    };
    let mut model = Model {
        content: Vec::new(),
        offset: 0,
    };
    served.play(&Step::Open("a".into(), 2, 1));
    let mut opened = 1;
    fill(&mut served, &mut model, size);
    for round in 0..ROUNDS {
        let (at, length, byte) = (next(size), 1 + next(PART), next(256) as u8);
        match next(300) {
            // O_TRUNC.
            0 => {
                served.play(&Step::Open("a".into(), 2, 4));
                served.play(&Step::Close(opened));
                opened += 1;
                model.content.clear();
                fill(&mut served, &mut model, size);
            }
            1..4 => {
                served.play(&Step::Truncate(0, at as i64));
                model.content.resize(at, 0);
            }
            4..10 => {
                served.play(&Step::WriteAt(0, at as i64, length, byte));
                model.write(at, length, byte);
            }
            10..15 => {
                served.play(&Step::Write(0, length, byte));
                model.write(model.offset, length, byte);
                model.offset += length;
            }
            15..40 => {
                served.play(&Step::Seek(0, at as i64, 0));
                model.offset = at;
            }
            40..150 => {
                let expected = model.read(model.offset, length);
                assert_eq!(
                    served.play(&Step::Read(0, length)),
                    expected,
                    "round {round}"
                );
                if let Outcome::Bytes(bytes) = expected {
                    model.offset += bytes.len();
                }
            }
            _ => {
                let expected = model.read(at, length);
                let read = served.play(&Step::ReadAt(0, at as i64, length));
                assert_eq!(read, expected, "round {round}");
            }
        }
    }
    served.unasked()
}

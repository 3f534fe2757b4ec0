//! The dump that a crash kernel offers of the kernel before it: an ELF file (`/proc/vmcore`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::lwk::ProbeError;

const DUMP: &str = "/proc/vmcore";
/// Size of a read, in bytes.
const PIECE: u64 = 1 << 20;
/// Pause between two reads of memory that must not change. A running core would write to it
/// thousands of times meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// Offset of the program headers in an ELF header, offset of their count, size of one, and the type
/// of loaded segments.
const HEADERS: u64 = 0x20;
const HEADERS_COUNT: u64 = 0x38;
const HEADER_SIZE: u64 = 56;
const LOAD: u32 = 1;

/// Segment of the dump.
struct Segment {
    /// Offset in the file.
    offset: u64,
    /// Physical address.
    start: u64,
    size: u64,
}

/// Reads the whole dump, and the memory of `ranges` (`START+SIZE`, hexadecimal) twice: it must not
/// have changed meanwhile.
pub(crate) fn probe(ranges: &[&str]) -> Result<(), ProbeError> {
    let ranges: Option<Vec<_>> = ranges.iter().map(|range| parse(range)).collect();
    let ranges = ranges.ok_or(ProbeError::Unknown)?;
    let file = File::open(DUMP).map_err(|error| wrong(&error))?;
    let segments = segments(&file).map_err(|error| wrong(&error))?;
    let sums = || {
        let sums = ranges
            .iter()
            .map(|&range| sum_range(&file, &segments, range));
        sums.collect::<Result<Vec<_>, _>>()
    };
    let first = sums()?;
    std::thread::sleep(PAUSE);
    if sums()? != first {
        return Err(ProbeError::Wrong("a node's memory changes".into()));
    }
    if first.contains(&0) {
        return Err(ProbeError::Wrong("a node's memory is empty".into()));
    }
    let mut size = 0;
    for segment in &segments {
        sum(&file, segment.offset, segment.size).map_err(|error| wrong(&error))?;
        size += segment.size;
    }
    println!("{} MiB in {} segments", size >> 20, segments.len());
    Ok(())
}

fn wrong(error: &io::Error) -> ProbeError {
    ProbeError::Wrong(format!("{DUMP}: {error}"))
}

fn parse(range: &str) -> Option<(u64, u64)> {
    let (start, size) = range.split_once('+')?;
    let number = |word| u64::from_str_radix(word, 16).ok();
    Some((number(start)?, number(size)?))
}

fn word(file: &File, offset: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(u64::from_le_bytes(bytes))
}

fn segments(file: &File) -> io::Result<Vec<Segment>> {
    let first = word(file, HEADERS)?;
    let count = word(file, HEADERS_COUNT)? & 0xffff;
    let mut segments = Vec::new();
    for header in (0..count).map(|index| first + index * HEADER_SIZE) {
        if word(file, header)? as u32 == LOAD {
            segments.push(Segment {
                offset: word(file, header + 8)?,
                start: word(file, header + 24)?,
                size: word(file, header + 32)?,
            });
        }
    }
    Ok(segments)
}

/// Checksum of a range of memory.
fn sum_range(file: &File, segments: &[Segment], range: (u64, u64)) -> Result<u64, ProbeError> {
    let (start, size) = range;
    let holds = |one: &&Segment| one.start <= start && start + size <= one.start + one.size;
    let Some(segment) = segments.iter().find(holds) else {
        let missing = format!("{start:#x} is not in the dump");
        return Err(ProbeError::Wrong(missing));
    };
    let offset = segment.offset + (start - segment.start);
    sum(file, offset, size).map_err(|error| wrong(&error))
}

fn sum(file: &File, offset: u64, size: u64) -> io::Result<u64> {
    let mut bytes = vec![0; PIECE as usize];
    let mut sum = 0_u64;
    for at in (0..size).step_by(PIECE as usize) {
        let piece = &mut bytes[..PIECE.min(size - at) as usize];
        file.read_exact_at(piece, offset + at)?;
        for word in piece.as_chunks::<8>().0 {
            sum = sum.rotate_left(1).wrapping_add(u64::from_le_bytes(*word));
        }
    }
    Ok(sum)
}

//! Placing kernel, initrd and firmware region in a node's chunks.
//!
//! All three need contiguous memory. The kernel goes as low in a chunk as possible, the initrd to
//! the bottom of a remaining gap, the firmware region to the top of one, which keeps the rest
//! contiguous. Small chunks are preferred.

use crate::LayoutError;
use crate::chunk::{Chunk, PAGE};

/// What to place. Sizes are in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    /// Contiguous memory from the load address.
    pub(crate) kernel: u64,
    /// Alignment of the load address: a power of two, 4096 or more.
    pub(crate) kernel_alignment: u64,
    /// Lowest load address.
    pub(crate) kernel_min: u64,
    /// 0 for none.
    pub(crate) initrd: u64,
    /// A multiple of 4096.
    pub(crate) firmware: u64,
}

/// The chosen addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The kernel's load address.
    pub(crate) kernel: u64,
    /// The initrd's address; 0 if there is none.
    pub(crate) initrd: u64,
    pub(crate) firmware: Chunk,
}

/// Finds places in `chunks`, which are ascending and disjoint.
pub(crate) fn place(chunks: &[Chunk], needs: &Needs) -> Result<Placement, LayoutError> {
    let mut shortage = kernel_shortage(chunks, needs);
    for (kernel, gaps) in kernel_places(chunks, needs) {
        match place_rest(gaps, needs) {
            Ok((initrd, firmware)) => {
                return Ok(Placement {
                    kernel,
                    initrd,
                    firmware,
                });
            }
            Err(lacking) => shortage = lacking,
        }
    }
    Err(shortage)
}

/// All kernel addresses, those in small chunks first, each with the remaining gaps, smallest first.
fn kernel_places(chunks: &[Chunk], needs: &Needs) -> impl Iterator<Item = (u64, Vec<Chunk>)> {
    let mut candidates: Vec<Chunk> = chunks.to_vec();
    candidates.sort_by_key(|chunk| chunk.size);
    candidates.into_iter().filter_map(move |chunk| {
        let (address, room) = kernel_room(&chunk, needs)?;
        if room < needs.kernel {
            return None;
        }
        let others = chunks.iter().filter(|other| other.start != chunk.start);
        let mut gaps: Vec<Chunk> = others.copied().collect();
        gaps.push(Chunk::between(chunk.start, address));
        let end = (address + needs.kernel).next_multiple_of(PAGE);
        gaps.push(Chunk::between(end, chunk.end()));
        gaps.sort_by_key(|gap| gap.size);
        Some((address, gaps))
    })
}

/// The lowest load address in `chunk`, and the bytes from there to its end.
fn kernel_room(chunk: &Chunk, needs: &Needs) -> Option<(u64, u64)> {
    let lowest = chunk.start.max(needs.kernel_min);
    let address = lowest.checked_next_multiple_of(needs.kernel_alignment)?;
    Some((address, chunk.end().saturating_sub(address)))
}

/// Places initrd and firmware in `gaps`, which are sorted by size.
fn place_rest(gaps: Vec<Chunk>, needs: &Needs) -> Result<(u64, Chunk), LayoutError> {
    let largest = gaps.last().map_or(0, |gap| gap.size);
    if needs.initrd > largest {
        return Err(LayoutError::InitrdDoesNotFit {
            needed: needs.initrd,
            largest,
        });
    }
    let initrd_size = needs.initrd.next_multiple_of(PAGE);
    for (index, gap) in gaps.iter().enumerate() {
        if gap.size < initrd_size {
            continue;
        }
        let mut rest = gaps.clone();
        rest[index] = Chunk::between(gap.start + initrd_size, gap.end());
        if let Some(firmware) = firmware_place(&rest, needs.firmware) {
            let initrd = if initrd_size == 0 { 0 } else { gap.start };
            return Ok((initrd, firmware));
        }
    }
    Err(LayoutError::FirmwareDoesNotFit {
        needed: needs.firmware,
    })
}

/// The top of the smallest gap that is large enough.
fn firmware_place(gaps: &[Chunk], size: u64) -> Option<Chunk> {
    let fitting = gaps.iter().filter(|gap| gap.size >= size);
    let gap = fitting.min_by_key(|gap| gap.size)?;
    Some(Chunk::between(gap.end() - size, gap.end()))
}

/// The error if no chunk is large enough for the kernel.
fn kernel_shortage(chunks: &[Chunk], needs: &Needs) -> LayoutError {
    let rooms = chunks.iter().filter_map(|chunk| kernel_room(chunk, needs));
    LayoutError::KernelDoesNotFit {
        needed: needs.kernel,
        largest: rooms.map(|(_, room)| room).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const NEEDS: Needs = Needs {
        kernel: 50 * MIB,
        kernel_alignment: 2 * MIB,
        kernel_min: 16 * MIB,
        initrd: 8 * MIB,
        firmware: 10 * PAGE,
    };

    fn mib(start: u64, size: u64) -> Chunk {
        Chunk {
            start: start * MIB,
            size: size * MIB,
        }
    }

    #[test]
    fn takes_small_chunks_first() {
        let chunks = [mib(16, 200), mib(300, 60), mib(400, 9), mib(500, 2)];
        let expected = Placement {
            kernel: 300 * MIB,
            initrd: 400 * MIB,
            firmware: Chunk::between(409 * MIB - 10 * PAGE, 409 * MIB),
        };
        assert_eq!(place(&chunks, &NEEDS).unwrap(), expected);
    }

    #[test]
    fn initrd_leaves_room_for_the_firmware() {
        // The initrd fills the best gap, so the firmware region goes elsewhere.
        let chunks = [mib(64, 50), mib(200, 8), mib(300, 20)];
        let placement = place(&chunks, &NEEDS).unwrap();
        assert_eq!(placement.initrd, 200 * MIB);
        assert_eq!(placement.firmware.end(), 320 * MIB);
        let chunks = [mib(64, 58)];
        let refusal = place(&chunks, &NEEDS).unwrap_err();
        assert!(
            matches!(refusal, LayoutError::FirmwareDoesNotFit { .. }),
            "{refusal}"
        );
    }

    #[test]
    fn tries_another_place_for_the_kernel() {
        // With the kernel in the smaller chunk the initrd would not fit.
        let needs = Needs {
            initrd: 60 * MIB,
            ..NEEDS
        };
        let placement = place(&[mib(64, 61), mib(200, 62)], &needs).unwrap();
        assert_eq!((placement.kernel, placement.initrd), (64 * MIB, 200 * MIB));
        let placement = place(&[mib(64, 59), mib(200, 120)], &needs).unwrap();
        assert_eq!((placement.kernel, placement.initrd), (64 * MIB, 200 * MIB));
        let placement = place(&[mib(64, 60), mib(200, 55)], &needs).unwrap();
        assert_eq!((placement.kernel, placement.initrd), (200 * MIB, 64 * MIB));
    }
}

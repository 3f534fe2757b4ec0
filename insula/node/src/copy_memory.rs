//! The frames of a snapshot behind what a copy takes for physical memory.

use insula_abi as abi;
use insula_boot::Chunk;
use insula_boot::monitor::SharedMemory;

/// Splits what a copy takes for physical memory where the frames that follow each other end.
pub(super) fn pair(addresses: &[abi::Chunk], frames: &[abi::Chunk]) -> Vec<SharedMemory> {
    let mut frames = frames.iter().copied();
    let mut rest = abi::Chunk::default();
    let mut shared = Vec::new();
    for chunk in addresses {
        let mut done = 0;
        while done < chunk.size {
            if rest.size == 0 {
                let Some(next) = frames.next() else {
                    return shared;
                };
                rest = next;
            }
            let size = rest.size.min(chunk.size - done);
            shared.push(SharedMemory {
                address: chunk.start + done,
                frames: Chunk {
                    start: rest.start,
                    size,
                },
            });
            done += size;
            rest.start += size;
            rest.size -= size;
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk(start: u64, size: u64) -> abi::Chunk {
        abi::Chunk { start, size }
    }

    #[test]
    fn ranges_are_split_where_frames_end() {
        let addresses = [chunk(0x100, 6), chunk(0x200, 4)];
        let frames = [chunk(0x1000, 4), chunk(0x2000, 9)];
        let shared = pair(&addresses, &frames);
        let shared: Vec<_> = shared
            .iter()
            .map(|one| (one.address, one.frames.start, one.frames.size))
            .collect();
        assert_eq!(
            shared,
            [(0x100, 0x1000, 4), (0x104, 0x2000, 2), (0x200, 0x2002, 4)]
        );
    }

    proptest! {
        #[test]
        fn each_byte_has_its_own_frame(
            sizes in proptest::collection::vec(1_u64..50, 1..8),
            frames in proptest::collection::vec(1_u64..50, 1..8),
        ) {
            let place = |base: u64, sizes: &[u64]| -> Vec<_> {
                sizes.iter().zip(0..).map(|(&size, number)| chunk(base * (number + 1), size)).collect()
            };
            let (addresses, frames) = (place(1 << 20, &sizes), place(1 << 40, &frames));
            let bytes = |chunks: &[abi::Chunk]| -> Vec<u64> {
                chunks.iter().flat_map(|chunk| chunk.start..chunk.start + chunk.size).collect()
            };
            let mut expected = bytes(&addresses).into_iter().zip(bytes(&frames));
            for SharedMemory { address, frames } in pair(&addresses, &frames) {
                for byte in 0..frames.size {
                    prop_assert_eq!(expected.next(), Some((address + byte, frames.start + byte)));
                }
            }
            prop_assert_eq!(expected.next(), None);
        }
    }
}

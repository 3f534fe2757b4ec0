//! A node's physical memory, as the stretches that were taken for it.

use crate::LayoutError;

/// Size of a small page, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// Where a node's low chunk may begin: Linux leaves the first 64 KiB alone, whatever the memory map says
/// (`early_reserve_memory()` in arch/x86/kernel/setup.c), since firmware is known to write there.
const LOW_FIRST: u64 = 64 << 10;
/// Where it must end: from here on lie the video memory and the firmware's ROM.
const LOW_END: u64 = 640 << 10;
/// Memory from here on is not "low": a core cannot be started in it.
const LOW_LIMIT: u64 = 1 << 20;
/// Least size of the low chunk: Linux' real-mode trampoline (0x7000 bytes, `reserve_real_mode()` in
/// arch/x86/realmode/init.c), a page for the fake I/O APIC and one for the end.
const LOW_SIZE_MIN: u64 = 0x9000;
/// End of what Linux can address with 4-level paging: `MAX_PHYSMEM_BITS` of arch/x86/include/asm/sparsemem.h.
const MEMORY_END: u64 = 1 << 46;

/// Whether `address` is that of a page below 1 MiB.
pub(crate) fn is_low_page(address: u64) -> bool {
    address < LOW_LIMIT && address.is_multiple_of(PAGE)
}

/// A stretch of physical memory. Both numbers are multiples of 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// Its first byte's physical address.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
}

impl Chunk {
    /// The stretch from `start` to before `end`; empty if that is not ahead.
    pub(crate) fn between(start: u64, end: u64) -> Chunk {
        Chunk {
            start,
            size: end.saturating_sub(start),
        }
    }

    /// The address after the last byte.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }

    fn check(&self) -> Result<(), LayoutError> {
        let whole_pages = self.start.is_multiple_of(PAGE) && self.size.is_multiple_of(PAGE);
        if self.size == 0 || !whole_pages || self.end() > MEMORY_END {
            return Err(LayoutError::BadChunk {
                start: self.start,
                size: self.size,
            });
        }
        Ok(())
    }
}

/// A node's memory, checked and put in order.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The one stretch below 1 MiB.
    pub(crate) low: Chunk,
    /// The others, ascending, with none touching another.
    pub(crate) high: Vec<Chunk>,
    /// What is no memory of its kernel's to use, but has a content for it: ascending, none touching another.
    pub(crate) persistent: Vec<Chunk>,
}

impl Memory {
    /// Sorts `chunks`, joins those that touch, and tells the low one from the others; sorts and joins `persistent`.
    pub(crate) fn of(chunks: &[Chunk], persistent: &[Chunk]) -> Result<Memory, LayoutError> {
        join(&[chunks, persistent].concat())?;
        let mut joined = join(chunks)?;
        let persistent = join(persistent)?;
        if let Some(low) = persistent.first().filter(|chunk| chunk.start < LOW_LIMIT) {
            return Err(LayoutError::BadChunk {
                start: low.start,
                size: low.size,
            });
        }
        let high = joined.split_off(joined.partition_point(|chunk| chunk.start < LOW_LIMIT));
        let &[low] = joined.as_slice() else {
            return Err(LayoutError::LowChunks {
                count: joined.len(),
            });
        };
        if low.start < LOW_FIRST || low.end() > LOW_END || low.size < LOW_SIZE_MIN {
            return Err(LayoutError::LowChunk {
                start: low.start,
                size: low.size,
            });
        }
        Ok(Memory {
            low,
            high,
            persistent,
        })
    }

    /// All stretches, ascending.
    pub(crate) fn all(&self) -> impl Iterator<Item = Chunk> + '_ {
        std::iter::once(self.low).chain(self.high.iter().copied())
    }
}

/// Ascending, with those joined that touch.
fn join(chunks: &[Chunk]) -> Result<Vec<Chunk>, LayoutError> {
    let mut joined: Vec<Chunk> = Vec::with_capacity(chunks.len());
    let mut sorted = chunks.to_vec();
    sorted.sort_unstable();
    for chunk in sorted {
        chunk.check()?;
        match joined.last_mut() {
            Some(last) if last.end() > chunk.start => {
                return Err(LayoutError::OverlappingChunks {
                    first: last.start,
                    second: chunk.start,
                });
            }
            Some(last) if last.end() == chunk.start => last.size += chunk.size,
            _ => joined.push(chunk),
        }
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Chunk = Chunk {
        start: 0x10000,
        size: 0x9000,
    };

    fn chunk(start: u64, size: u64) -> Chunk {
        Chunk { start, size }
    }

    #[test]
    fn sorts_and_joins() {
        let chunks = [
            chunk(6 << 20, 2 << 20),
            LOW,
            chunk(2 << 20, 2 << 20),
            chunk(4 << 20, 2 << 20),
        ];
        let memory = Memory::of(&chunks, &[]).unwrap();
        assert_eq!(memory.low, LOW);
        assert_eq!(memory.high, [chunk(2 << 20, 6 << 20)]);
    }

    #[test]
    fn refuses_bad_chunks() {
        for bad in [
            chunk(2 << 20, 0),
            chunk((2 << 20) + 1, PAGE),
            chunk(2 << 20, 100),
            chunk(MEMORY_END, PAGE),
            chunk(u64::MAX - 4095, PAGE),
        ] {
            let refusal = Memory::of(&[LOW, bad], &[]);
            assert!(
                matches!(refusal, Err(LayoutError::BadChunk { .. })),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn refuses_overlap() {
        let chunks = [LOW, chunk(2 << 20, 2 << 20), chunk(3 << 20, 2 << 20)];
        assert!(matches!(
            Memory::of(&chunks, &[]),
            Err(LayoutError::OverlappingChunks { .. })
        ));
    }

    #[test]
    fn persistent_memory_is_nothing_else() {
        let chunks = [LOW, chunk(2 << 20, 2 << 20)];
        let beside = [chunk(6 << 20, 2 << 20), chunk(4 << 20, 2 << 20)];
        let memory = Memory::of(&chunks, &beside).unwrap();
        assert_eq!(memory.high, [chunk(2 << 20, 2 << 20)]);
        assert_eq!(memory.persistent, [chunk(4 << 20, 4 << 20)]);
        let both = Memory::of(&chunks, &[chunk(3 << 20, 2 << 20)]);
        assert!(matches!(both, Err(LayoutError::OverlappingChunks { .. })));
        let low = Memory::of(&chunks, &[chunk(0x30000, PAGE)]);
        assert!(matches!(low, Err(LayoutError::BadChunk { .. })));
    }

    #[test]
    fn wants_one_fitting_low_chunk() {
        let high = chunk(2 << 20, 2 << 20);
        let of = |chunks: &[Chunk]| Memory::of(chunks, &[]).unwrap_err();
        assert!(matches!(of(&[high]), LayoutError::LowChunks { count: 0 }));
        assert!(matches!(
            of(&[LOW, chunk(0x30000, 0x9000), high]),
            LayoutError::LowChunks { count: 2 }
        ));
        for bad in [
            chunk(0xf000, 0xa000),
            chunk(0x10000, 0x8000),
            chunk(0x98000, 0x9000),
        ] {
            assert!(
                matches!(of(&[bad, high]), LayoutError::LowChunk { .. }),
                "{bad:?}"
            );
        }
    }
}

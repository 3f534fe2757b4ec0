//! A node's physical memory, as chunks.

use crate::LayoutError;

/// Size of a small page in bytes.
pub(crate) const PAGE: u64 = 4096;

/// Lowest start of the low chunk: Linux never uses the first 64 KiB, regardless of the memory map
/// (`early_reserve_memory()` in arch/x86/kernel/setup.c), since firmware may write there.
const LOW_FIRST: u64 = 64 << 10;
/// Highest end of the low chunk: video memory and firmware ROM follow.
const LOW_END: u64 = 640 << 10;
/// End of low memory: a core cannot start beyond.
pub(crate) const LOWMEM_LIMIT: u64 = 1 << 20;
/// Minimum size of the low chunk: Linux' real-mode trampoline (0x7000 bytes, `reserve_real_mode()`
/// in arch/x86/realmode/init.c), the fake I/O APIC and the tboot page.
const LOW_SIZE_MIN: u64 = 0x9000;
/// End of physical memory that Linux supports with 4-level paging: `MAX_PHYSMEM_BITS` of
/// arch/x86/include/asm/sparsemem.h.
const MEMORY_END: u64 = 1 << 46;

/// Whether `address` is a page below 1 MiB.
pub(crate) fn is_low_page(address: u64) -> bool {
    address < LOWMEM_LIMIT && address.is_multiple_of(PAGE)
}

/// A range of physical memory. Both fields are multiples of 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// Physical address of the first byte.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Chunk {
    /// The range `start..end`; empty if `end` is not above `start`.
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
            return Err(LayoutError::InvalidChunk {
                start: self.start,
                size: self.size,
            });
        }
        Ok(())
    }
}

/// A node's memory, checked and sorted.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The chunk below 1 MiB.
    pub(crate) low: Chunk,
    /// The others: ascending, not adjacent.
    pub(crate) high: Vec<Chunk>,
    /// Persistent memory: ascending, not adjacent.
    pub(crate) persistent: Vec<Chunk>,
}

impl Memory {
    /// Sorts and merges `chunks` and `persistent`, and splits off the low chunk.
    pub(crate) fn of(chunks: &[Chunk], persistent: &[Chunk]) -> Result<Memory, LayoutError> {
        merge(&[chunks, persistent].concat())?;
        let mut merged = merge(chunks)?;
        let persistent = merge(persistent)?;
        if let Some(low) = persistent
            .first()
            .filter(|chunk| chunk.start < LOWMEM_LIMIT)
        {
            return Err(LayoutError::InvalidChunk {
                start: low.start,
                size: low.size,
            });
        }
        let high = merged.split_off(merged.partition_point(|chunk| chunk.start < LOWMEM_LIMIT));
        let &[low] = merged.as_slice() else {
            return Err(LayoutError::LowChunks {
                count: merged.len(),
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

    /// All chunks, ascending.
    pub(crate) fn all(&self) -> impl Iterator<Item = Chunk> + '_ {
        std::iter::once(self.low).chain(self.high.iter().copied())
    }
}

/// Sorts the chunks and merges adjacent ones.
fn merge(chunks: &[Chunk]) -> Result<Vec<Chunk>, LayoutError> {
    let mut merged: Vec<Chunk> = Vec::with_capacity(chunks.len());
    let mut sorted = chunks.to_vec();
    sorted.sort_unstable();
    for chunk in sorted {
        chunk.check()?;
        match merged.last_mut() {
            Some(last) if last.end() > chunk.start => {
                return Err(LayoutError::OverlappingChunks {
                    first: last.start,
                    second: chunk.start,
                });
            }
            Some(last) if last.end() == chunk.start => last.size += chunk.size,
            _ => merged.push(chunk),
        }
    }
    Ok(merged)
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
    fn sorts_and_merges() {
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
                matches!(refusal, Err(LayoutError::InvalidChunk { .. })),
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
    fn persistent_memory_overlaps_nothing() {
        let chunks = [LOW, chunk(2 << 20, 2 << 20)];
        let beside = [chunk(6 << 20, 2 << 20), chunk(4 << 20, 2 << 20)];
        let memory = Memory::of(&chunks, &beside).unwrap();
        assert_eq!(memory.high, [chunk(2 << 20, 2 << 20)]);
        assert_eq!(memory.persistent, [chunk(4 << 20, 4 << 20)]);
        let both = Memory::of(&chunks, &[chunk(3 << 20, 2 << 20)]);
        assert!(matches!(both, Err(LayoutError::OverlappingChunks { .. })));
        let low = Memory::of(&chunks, &[chunk(0x30000, PAGE)]);
        assert!(matches!(low, Err(LayoutError::InvalidChunk { .. })));
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

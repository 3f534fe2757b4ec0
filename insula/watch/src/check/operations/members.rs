//! Members of a structure that are read at once: there are many such objects.

use crate::target::Kernel;
use kimage::PhysicalMemory;
use kimage::running::{PageTable, RunningError};

/// The memory of a kernel by virtual addresses.
pub(super) type Memory<'a> = PageTable<'a, dyn PhysicalMemory + 'a>;

/// Some members of a structure, of 64 bits each.
#[derive(Debug)]
pub(super) struct Members<const N: usize> {
    /// Offset of the first one in the structure.
    start: u64,
    /// Offsets from that.
    offsets: [usize; N],
    size: usize,
}

impl<const N: usize> Members<N> {
    /// Finds the members of these names.
    pub(super) fn of(
        kernel: &Kernel<'_>,
        structure: &str,
        names: [&str; N],
    ) -> Result<Self, RunningError> {
        let mut all = [0; N];
        for (offset, name) in all.iter_mut().zip(names) {
            *offset = kernel.btf()?.offset_of(structure, name)?;
        }
        let start = all.iter().copied().min().unwrap_or_default();
        let offsets = all.map(|offset| (offset - start) as usize);
        let last = offsets.iter().copied().max().unwrap_or_default();
        Ok(Self {
            start,
            offsets,
            size: last + size_of::<u64>(),
        })
    }

    /// Their values in the structure at an address; `None` if there is no memory.
    pub(super) fn read(&self, memory: &Memory<'_>, address: u64) -> Option<[u64; N]> {
        let mut bytes = vec![0; self.size];
        memory
            .read(address.wrapping_add(self.start), &mut bytes)
            .ok()?;
        let word = |offset: usize| bytes[offset..].first_chunk().copied().unwrap_or_default();
        Some(self.offsets.map(|offset| u64::from_le_bytes(word(offset))))
    }
}

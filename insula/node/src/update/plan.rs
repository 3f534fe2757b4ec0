//! Planning an update, before anything is touched.

use insula_abi as abi;
use insula_base::error::Error;
use insula_base::units::{Change, Size};
use insula_driver::name::Name;

use super::{Handle, error};
use crate::record::no_record;

/// Current state of a node.
#[derive(Debug)]
pub(super) struct Current<'a> {
    pub(super) name: &'a Name,
    /// Its cores, the boot core first.
    pub(super) cpus: &'a [abi::Cpu],
    /// Local APIC ids of cores that its tables list and that it does not have.
    pub(super) room: Vec<u32>,
    /// Its memory, in order.
    chunks: &'a [abi::Chunk],
    /// Number of initial ones.
    started: usize,
}

/// A change by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference<More, Fewer> {
    Same,
    More(More),
    Fewer(Fewer),
}

impl<More: Default, Fewer: Default> Difference<More, Fewer> {
    pub(super) fn more(self) -> More {
        match self {
            Self::More(more) => more,
            _ => More::default(),
        }
    }

    pub(super) fn fewer(self) -> Fewer {
        match self {
            Self::Fewer(fewer) => fewer,
            _ => Fewer::default(),
        }
    }
}

impl<'a> Current<'a> {
    pub(super) fn of(
        name: &'a Name,
        handle: &'a Handle,
        chunks: &'a [abi::Chunk],
    ) -> Result<Self, Error> {
        let record = handle.record.as_ref();
        let record = record.ok_or_else(|| no_record(name.as_str()).untouched())?;
        let own: Vec<u32> = handle.cpus.iter().map(|cpu| cpu.apic_id).collect();
        Ok(Self {
            name,
            cpus: &handle.cpus,
            room: record.room(&own),
            chunks,
            started: record.memory.len().min(chunks.len()),
        })
    }

    /// Number of its chunks of memory.
    pub(super) fn chunks_count(&self) -> usize {
        self.chunks.len()
    }

    /// Chunks added since its start.
    pub(super) fn added(&self) -> &'a [abi::Chunk] {
        &self.chunks[self.started..]
    }

    /// Number of cores to add, or of last cores to remove.
    pub(super) fn cores(
        &self,
        change: Option<Change<u32>>,
    ) -> Result<Difference<u32, usize>, Error> {
        let have = self.cpus.len() as u64;
        let requested = change.map_or(Some(have), |change| change.apply(have));
        let requested = requested
            .filter(|&requested| requested > 0)
            .ok_or_else(|| error::no_core(self.name))?;
        let max = have + self.room.len() as u64;
        if requested > max {
            return Err(error::no_room(self.name, requested, max));
        }
        Ok(match requested {
            // Bounded by the number of cores in a node.
            _ if requested > have => Difference::More((requested - have) as u32),
            _ if requested < have => Difference::Fewer((have - requested) as usize),
            _ => Difference::Same,
        })
    }

    /// Number of bytes to add, or of last chunks to remove.
    pub(super) fn memory(
        &self,
        change: Option<Change<Size>>,
        block: u64,
    ) -> Result<Difference<u64, usize>, Error> {
        let high = |chunk: &&abi::Chunk| chunk.start >= abi::LOWMEM_LIMIT;
        let have: u64 = self
            .chunks
            .iter()
            .filter(high)
            .map(|chunk| chunk.size)
            .sum();
        let requested = change.map_or(Some(have), |change| change.apply(have));
        let fixed = || {
            let added = self.added().iter().map(|chunk| chunk.size).sum();
            error::started_with(self.name, Size(added))
        };
        let requested = requested.ok_or_else(fixed)?;
        let difference = requested.abs_diff(have);
        if !difference.is_multiple_of(block) {
            let (requested, block) = (Size(difference), Size(block));
            return Err(error::no_multiple(self.name, requested, block));
        }
        match () {
            () if difference == 0 => Ok(Difference::Same),
            () if requested > have => Ok(Difference::More(difference)),
            () => match self.last_chunks(difference) {
                Some(count) => Ok(Difference::Fewer(count)),
                None => Err(fixed()),
            },
        }
    }

    /// Number of the last added chunks that add up to `bytes`.
    fn last_chunks(&self, bytes: u64) -> Option<usize> {
        let mut left = bytes;
        for (count, chunk) in self.added().iter().rev().enumerate() {
            if left == 0 {
                return Some(count);
            }
            left = left.checked_sub(chunk.size)?;
        }
        (left == 0).then_some(self.added().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BLOCK: u64 = 128 * MIB;

    fn cpu(apic_id: u32) -> abi::Cpu {
        abi::Cpu {
            cpu: apic_id,
            apic_id,
            owner: abi::CpuOwner::NODE,
            node: 1,
        }
    }

    fn with<T>(added: u64, check: impl FnOnce(&Current) -> T) -> T {
        let chunk = |start, size| abi::Chunk { start, size };
        let mut chunks = vec![chunk(0x10000, 0x9000), chunk(1 << 30, 256 * MIB)];
        chunks.extend((0..added).map(|number| chunk((2 << 30) + number * BLOCK, BLOCK)));
        let name = "web".parse().unwrap();
        let cpus = [cpu(3), cpu(2)];
        check(&Current {
            name: &name,
            cpus: &cpus,
            room: vec![1],
            chunks: &chunks,
            started: 2,
        })
    }

    fn cores(change: &str) -> Result<Difference<u32, usize>, String> {
        let change = Some(change.parse().unwrap());
        with(0, |current| current.cores(change)).map_err(|error| error.to_string())
    }

    fn memory(added: u64, change: &str) -> Result<Difference<u64, usize>, String> {
        let change = Some(change.parse().unwrap());
        with(added, |current| current.memory(change, BLOCK)).map_err(|error| error.to_string())
    }

    #[test]
    fn cores_by_difference_and_by_number() {
        assert_eq!(cores("+1"), Ok(Difference::More(1)));
        assert_eq!(cores("3"), Ok(Difference::More(1)));
        assert_eq!(cores("-1"), Ok(Difference::Fewer(1)));
        assert_eq!(cores("2"), Ok(Difference::Same));
        assert_eq!(
            with(0, |current| current.cores(None)).unwrap(),
            Difference::Same
        );
    }

    #[test]
    fn memory_by_difference_and_in_all() {
        assert_eq!(memory(0, "+256M"), Ok(Difference::More(256 * MIB)));
        assert_eq!(memory(0, "384M"), Ok(Difference::More(BLOCK)));
        assert_eq!(memory(2, "-128M"), Ok(Difference::Fewer(1)));
        assert_eq!(memory(2, "256M"), Ok(Difference::Fewer(2)));
        assert_eq!(memory(1, "+0"), Ok(Difference::Same));
        assert_eq!(
            with(1, |current| current.memory(None, BLOCK)).unwrap(),
            Difference::Same
        );
    }

    #[test]
    fn impossible_updates_are_refused() {
        let refusals = [
            cores("+2").unwrap_err(),
            cores("-2").unwrap_err(),
            cores("-9").unwrap_err(),
            memory(0, "+64M").unwrap_err(),
            memory(1, "-256M").unwrap_err(),
            memory(1, "-1T").unwrap_err(),
        ];
        insta::assert_snapshot!(refusals.join("\n\n"));
    }
}

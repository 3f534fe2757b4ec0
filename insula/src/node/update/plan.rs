//! What an update comes to, before anything is touched.

use insula_abi as abi;

use super::{Handle, UpdateError};
use crate::name::Name;
use crate::units::{Change, Size};

/// A node as it is.
#[derive(Debug)]
pub(super) struct Present<'a> {
    pub(super) name: &'a Name,
    /// Its cores, the first boots.
    pub(super) cpus: &'a [abi::Cpu],
    /// Local APIC ids of the cores that its tables list and that it has not.
    pub(super) room: Vec<u32>,
    /// Its memory, in order.
    chunks: &'a [abi::Chunk],
    /// How many of these it was started with.
    started: usize,
}

/// So many more or fewer, or the same.
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

impl<'a> Present<'a> {
    pub(super) fn of(
        name: &'a Name,
        handle: &'a Handle,
        chunks: &'a [abi::Chunk],
    ) -> Result<Self, UpdateError> {
        let record = handle.record.as_ref();
        let record = record.ok_or_else(|| UpdateError::NoRecord(name.clone()))?;
        let own: Vec<u32> = handle.cpus.iter().map(|cpu| cpu.apic_id).collect();
        Ok(Self {
            name,
            cpus: &handle.cpus,
            room: record.room(&own),
            chunks,
            started: record.memory.len().min(chunks.len()),
        })
    }

    /// How many chunks of memory it has.
    pub(super) fn chunks_count(&self) -> usize {
        self.chunks.len()
    }

    /// The chunks that it has got since it was started.
    pub(super) fn added(&self) -> &'a [abi::Chunk] {
        &self.chunks[self.started..]
    }

    /// Cores more; or how many of the last go.
    pub(super) fn cores(
        &self,
        change: Option<Change<u32>>,
    ) -> Result<Difference<u32, usize>, UpdateError> {
        let have = self.cpus.len() as u64;
        let wanted = change.map_or(Some(have), |change| change.apply(have));
        let wanted = wanted
            .filter(|&wanted| wanted > 0)
            .ok_or_else(|| UpdateError::NoCore(self.name.clone()))?;
        let most = have + self.room.len() as u64;
        if wanted > most {
            let name = self.name.clone();
            return Err(UpdateError::NoRoom { name, wanted, most });
        }
        Ok(match wanted {
            // At most as many as there are cores in a node.
            _ if wanted > have => Difference::More((wanted - have) as u32),
            _ if wanted < have => Difference::Fewer((have - wanted) as usize),
            _ => Difference::Same,
        })
    }

    /// Bytes more; or how many of the last chunks go.
    pub(super) fn memory(
        &self,
        change: Option<Change<Size>>,
        block: u64,
    ) -> Result<Difference<u64, usize>, UpdateError> {
        let high = |chunk: &&abi::Chunk| chunk.start >= abi::LOW_LIMIT;
        let have: u64 = self
            .chunks
            .iter()
            .filter(high)
            .map(|chunk| chunk.size)
            .sum();
        let wanted = change.map_or(Some(have), |change| change.apply(have));
        let fixed = || UpdateError::StartedWith {
            name: self.name.clone(),
            added: Size(self.added().iter().map(|chunk| chunk.size).sum()),
        };
        let wanted = wanted.ok_or_else(fixed)?;
        let difference = wanted.abs_diff(have);
        if !difference.is_multiple_of(block) {
            let (name, block) = (self.name.clone(), Size(block));
            let asked = Size(difference);
            return Err(UpdateError::Block { name, asked, block });
        }
        match () {
            () if difference == 0 => Ok(Difference::Same),
            () if wanted > have => Ok(Difference::More(difference)),
            () => match self.last_chunks(difference) {
                Some(count) => Ok(Difference::Fewer(count)),
                None => Err(fixed()),
            },
        }
    }

    /// How many of the chunks that it has got make up so many bytes, counted from the last.
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

    fn with<T>(added: u64, look: impl FnOnce(&Present) -> T) -> T {
        let chunk = |start, size| abi::Chunk { start, size };
        let mut chunks = vec![chunk(0x10000, 0x9000), chunk(1 << 30, 256 * MIB)];
        chunks.extend((0..added).map(|number| chunk((2 << 30) + number * BLOCK, BLOCK)));
        let name = "web".parse().unwrap();
        let cpus = [cpu(3), cpu(2)];
        look(&Present {
            name: &name,
            cpus: &cpus,
            room: vec![1],
            chunks: &chunks,
            started: 2,
        })
    }

    fn cores(change: &str) -> Result<Difference<u32, usize>, String> {
        let change = Some(change.parse().unwrap());
        with(0, |present| present.cores(change)).map_err(|error| error.to_string())
    }

    fn memory(added: u64, change: &str) -> Result<Difference<u64, usize>, String> {
        let change = Some(change.parse().unwrap());
        with(added, |present| present.memory(change, BLOCK)).map_err(|error| error.to_string())
    }

    #[test]
    fn cores_by_difference_and_by_number() {
        assert_eq!(cores("+1"), Ok(Difference::More(1)));
        assert_eq!(cores("3"), Ok(Difference::More(1)));
        assert_eq!(cores("-1"), Ok(Difference::Fewer(1)));
        assert_eq!(cores("2"), Ok(Difference::Same));
        assert_eq!(
            with(0, |present| present.cores(None)).unwrap(),
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
            with(1, |present| present.memory(None, BLOCK)).unwrap(),
            Difference::Same
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
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

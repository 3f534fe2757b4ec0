//! What nodes have counted: of each its cores and memory and, of the lightweight kernel, what its
//! programs did, call by call.
//!
//! A node's kernel counts in memory that it shares with the base (`abi/include/insula_lwk.h`). To look
//! costs the node nothing. All counts are since the node's last start.

mod prometheus;

use std::mem::offset_of;

pub use prometheus::prometheus;

use insula_abi::lwk::{
    COUNTERS_PAGES, Calls, Counters, Delegation, LWK_MAGIC, PAGE_SIZE, Process, base_state,
};
use insula_lwk::calls::table::{self, Kind};
use kimage::{PhysicalMemory, ReadError};
use nix::errno::Errno;
use serde::Serialize;
use zerocopy::FromBytes;

use crate::channel;
use crate::driver::DriverError;
use crate::node::Handle;
use crate::program::AREA_PAGES;

/// Why there are no counts of a node.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// Its memory cannot be had.
    #[error("the counts of node '{name}' cannot be read: {source}; nothing was changed")]
    Driver {
        /// Of which.
        name: String,
        /// Why.
        source: DriverError,
    },
    /// Its memory is not as it was laid out.
    #[error("the counts of node '{name}' are not where they should be: {source}")]
    Read {
        /// Of which.
        name: String,
        /// Why.
        source: ReadError,
    },
}

/// What is known of a node at a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeStats {
    /// Its name.
    pub name: String,
    /// OCI's word for its state.
    pub state: &'static str,
    /// How many cores it has.
    pub cpus: usize,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// How long it has run, in nanoseconds.
    pub ran_ns: u64,
    /// What its programs did; only of the lightweight kernel.
    pub programs: Option<ProgramStats>,
}

/// What programs on a node of the lightweight kernel did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramStats {
    /// Processes that are there now: programs, and copies that they have made of themselves.
    pub processes: usize,
    /// On each of its cores, in the kernel's order.
    pub cores: Vec<CoreStats>,
    /// System calls by name, those most often made first.
    pub calls: Vec<CallStats>,
}

/// What a core has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CoreStats {
    /// System calls that the node's kernel executed.
    pub local_calls: u64,
    /// System calls that the base executed.
    pub delegated_calls: u64,
    /// Page faults of programs.
    pub faults: u64,
    /// Pages that the base asked for in the middle of calls.
    pub questions: u64,
    /// Calls and requests of the node's kernel itself.
    pub requests: u64,
    /// Entries to the kernel from programs.
    pub entries: u64,
    /// Threads that were given the core.
    pub switches: u64,
    /// Rings of the base's doorbell.
    pub rings: u64,
}

/// How often a system call was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallStats {
    /// Its name.
    pub name: &'static str,
    /// Whether the base executed it.
    pub delegated: bool,
    /// How often.
    pub count: u64,
}

impl CoreStats {
    fn of(counters: &Counters) -> Self {
        Self {
            local_calls: counters.local_calls,
            delegated_calls: counters.delegated_calls,
            faults: counters.faults,
            questions: counters.questions,
            requests: counters.requests,
            entries: counters.entries,
            switches: counters.switches,
            rings: counters.rings,
        }
    }

    /// Each count put together with the same one of `other`.
    fn combined(&self, other: &Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            local_calls: with(self.local_calls, other.local_calls),
            delegated_calls: with(self.delegated_calls, other.delegated_calls),
            faults: with(self.faults, other.faults),
            questions: with(self.questions, other.questions),
            requests: with(self.requests, other.requests),
            entries: with(self.entries, other.entries),
            switches: with(self.switches, other.switches),
            rings: with(self.rings, other.rings),
        }
    }

    /// All of them, with names as metrics have them and what they are.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            (
                "local_calls",
                "System calls that the node's kernel executed.",
                self.local_calls,
            ),
            (
                "delegated_calls",
                "System calls that the base executed.",
                self.delegated_calls,
            ),
            ("faults", "Page faults of programs.", self.faults),
            (
                "questions",
                "Pages that the base asked for in the middle of calls.",
                self.questions,
            ),
            (
                "requests",
                "Calls and requests of the node's kernel itself.",
                self.requests,
            ),
            (
                "entries",
                "Entries to the kernel from programs.",
                self.entries,
            ),
            (
                "switches",
                "Threads that were given the core.",
                self.switches,
            ),
            ("rings", "Rings of the base's doorbell.", self.rings),
        ]
    }
}

impl NodeStats {
    /// What happened between two looks at the same node. Of one that was started again meanwhile: what
    /// happened since.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let is_same_start = earlier.ran_ns <= self.ran_ns;
        let before = earlier.programs.as_ref().filter(|_| is_same_start);
        let programs = self.programs.as_ref().map(|now| match before {
            Some(before) => now.since(before),
            None => now.clone(),
        });
        Self {
            programs,
            ..self.clone()
        }
    }
}

impl ProgramStats {
    /// What was counted after `earlier`.
    fn since(&self, earlier: &Self) -> Self {
        let cores = self.cores.iter().enumerate().map(|(index, now)| {
            let before = earlier.cores.get(index).copied().unwrap_or_default();
            now.combined(&before, grown)
        });
        let calls = self.calls.iter().filter_map(|now| {
            let mut then = earlier.calls.iter();
            let before = then.find(|call| call.name == now.name);
            let count = grown(now.count, before.map_or(0, |call| call.count));
            (count > 0).then_some(CallStats { count, ..*now })
        });
        let mut calls: Vec<_> = calls.collect();
        calls.sort_by_key(|call| std::cmp::Reverse(call.count));
        Self {
            processes: self.processes,
            cores: cores.collect(),
            calls,
        }
    }

    /// Of all cores together.
    #[must_use]
    pub fn total(&self) -> CoreStats {
        let none = CoreStats::default();
        let cores = self.cores.iter();
        cores.fold(none, |sum, core| sum.combined(core, u64::saturating_add))
    }

    /// Reads them from a node's memory; none if there is no delegation area at that address.
    fn read(
        memory: &impl PhysicalMemory,
        area: u64,
        cores: usize,
    ) -> Result<Option<Self>, ReadError> {
        let mut header = [0; size_of::<Delegation>()];
        memory.read(area, &mut header)?;
        let header = Delegation::read_from_bytes(&header).ok();
        let Some(header) = header.filter(|header| header.magic == LWK_MAGIC) else {
            return Ok(None);
        };
        let room = (u64::from(COUNTERS_PAGES) - 1) * PAGE_SIZE / size_of::<Counters>() as u64;
        let cores = (0..room.min(cores as u64)).map(|core| {
            let mut bytes = [0; size_of::<Counters>()];
            memory.read(area + PAGE_SIZE + core * bytes.len() as u64, &mut bytes)?;
            let counters = Counters::read_from_bytes(&bytes).unwrap_or_default();
            Ok(CoreStats::of(&counters))
        });
        let cores = cores.collect::<Result<_, ReadError>>()?;
        let mut made = [0; size_of::<Calls>()];
        memory.read(area + u64::from(COUNTERS_PAGES) * PAGE_SIZE, &mut made)?;
        Ok(Some(Self {
            processes: processes(memory, area, &header)?,
            cores,
            calls: calls(&made),
        }))
    }
}

/// Those that have begun and whose proxies live. What the node may have written over the header leads
/// no further than the area.
fn processes(
    memory: &impl PhysicalMemory,
    area: u64,
    header: &Delegation,
) -> Result<usize, ReadError> {
    let pages = (0..u64::from(header.pages.min(AREA_PAGES))).zip(header.process_of);
    let first_pages = pages.filter(|&(page, process)| page > 0 && page == u64::from(process));
    let mut begun = 0;
    for (page, _) in first_pages {
        let mut state = [0; 8];
        let at = area + page * PAGE_SIZE + offset_of!(Process, base_state) as u64;
        memory.read(at, &mut state)?;
        begun += usize::from(u64::from_le_bytes(state) == base_state::BEGUN);
    }
    Ok(begun)
}

/// By how much a count grew. A node may write what it likes there: one that shrank counts from nothing.
fn grown(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn calls(made: &[u8]) -> Vec<CallStats> {
    let (counts, _) = made.as_chunks::<8>();
    let counts = (0..).zip(counts.iter().map(|&count| u64::from_le_bytes(count)));
    let named = counts.filter_map(|(number, count)| {
        let call = table::find(number)?;
        (count > 0).then_some(CallStats {
            name: call.name,
            delegated: matches!(call.kind, Kind::Delegated | Kind::Masked { .. }),
            count,
        })
    });
    let mut calls: Vec<_> = named.collect();
    calls.sort_by_key(|call| std::cmp::Reverse(call.count));
    calls
}

/// What is known of a node now.
///
/// # Errors
/// [`StatsError`].
pub fn of(handle: &Handle) -> Result<NodeStats, StatsError> {
    let view = handle.view();
    let programs = match handle.record.as_ref().map(|record| record.channels) {
        Some(channels) if channels > 0 && handle.is_running() => programs(handle, channels)?,
        _ => None,
    };
    Ok(NodeStats {
        name: view.name,
        state: view.state,
        cpus: view.apic_ids.len(),
        memory_bytes: view.memory_bytes,
        ran_ns: view.ran_ns,
        programs,
    })
}

fn programs(handle: &Handle, channels: u64) -> Result<Option<ProgramStats>, StatsError> {
    let name = || handle.view().name;
    let memory = handle.node.memory().map_err(DriverError::from);
    let mapping = match memory.and_then(|memory| Ok(memory.map()?)) {
        // It has been removed meanwhile.
        Err(error) if error.errno() == Some(Errno::ENODEV) => return Ok(None),
        mapping => mapping.map_err(|source| StatsError::Driver {
            name: name(),
            source,
        })?,
    };
    let area = channels + channel::AREA_SIZE;
    let ends = mapping.ranges().into_iter().map(|range| range.end);
    // A node without room behind its channels has no such area.
    if !ends.clone().any(|end| area < end) {
        return Ok(None);
    }
    ProgramStats::read(&mapping, area, handle.cpus.len()).map_err(|source| StatsError::Read {
        name: name(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    /// The memory of a node, from this address on.
    struct Bytes(Vec<u8>);
    const START: u64 = 0x10_0000;

    impl PhysicalMemory for Bytes {
        fn ranges(&self) -> Vec<Range<u64>> {
            std::iter::once(START..START + self.0.len() as u64).collect()
        }

        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
            let from = usize::try_from(address - START).unwrap();
            into.copy_from_slice(&self.0[from..from + into.len()]);
            Ok(())
        }
    }

    fn memory() -> Bytes {
        // Behind its counters a process that runs and one whose proxy is gone, each with its reach.
        let first = COUNTERS_PAGES as usize + 1;
        let mut bytes = vec![0; (first + 4) * PAGE_SIZE as usize];
        let mut header = Delegation::new_zeroed();
        header.magic = LWK_MAGIC;
        // As a hostile node may have it: of a process beyond the area, and the memory.
        header.pages = 512;
        header.process_of[300] = 300;
        for (process, state) in [(first, base_state::BEGUN), (first + 2, base_state::ENDED)] {
            header.process_of[process..][..2].fill(process as u16);
            let at = process * PAGE_SIZE as usize;
            bytes[at..at + 8].copy_from_slice(&state.to_le_bytes());
        }
        bytes[..size_of::<Delegation>()].copy_from_slice(header.as_bytes());
        for core in 0..2 {
            let counters = Counters {
                local_calls: 10 + core,
                rings: core,
                ..Counters::default()
            };
            let at = PAGE_SIZE as usize + core as usize * size_of::<Counters>();
            bytes[at..at + size_of::<Counters>()].copy_from_slice(counters.as_bytes());
        }
        for (number, count) in [(1_usize, 7_u64), (202, 9)] {
            let at = COUNTERS_PAGES as usize * PAGE_SIZE as usize + 8 * number;
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
        }
        Bytes(bytes)
    }

    pub(super) fn node() -> NodeStats {
        NodeStats {
            name: "quiet".into(),
            state: "running",
            cpus: 2,
            memory_bytes: 1 << 26,
            ran_ns: 5,
            programs: ProgramStats::read(&memory(), START, 2).unwrap(),
        }
    }

    #[test]
    fn counts_are_found() {
        let programs = node().programs.unwrap();
        assert_eq!(programs.processes, 1);
        assert_eq!(
            (programs.total().local_calls, programs.total().rings),
            (21, 1)
        );
        let calls: Vec<_> = programs
            .calls
            .iter()
            .map(|call| (call.name, call.delegated, call.count))
            .collect();
        assert_eq!(calls, [("futex", false, 9), ("write", true, 7)]);
        let nothing = Bytes(vec![0; 4096]);
        assert_eq!(ProgramStats::read(&nothing, START, 2).unwrap(), None);
    }

    #[test]
    fn between_two_looks_counts_grow() {
        let earlier = node();
        let mut later = node();
        later.ran_ns += 1_000_000_000;
        let programs = later.programs.as_mut().unwrap();
        programs.cores[1].rings += 4;
        programs.calls[1].count += 3;
        let between = later.since(&earlier).programs.unwrap();
        assert_eq!((between.total().local_calls, between.total().rings), (0, 4));
        let calls: Vec<_> = between
            .calls
            .iter()
            .map(|call| (call.name, call.count))
            .collect();
        assert_eq!(calls, [("write", 3)]);
    }

    #[test]
    fn a_node_that_was_started_again_counts_from_nothing() {
        let mut earlier = node();
        earlier.ran_ns = 9;
        assert_eq!(node().since(&earlier), node());
        let mut shrunk = node();
        shrunk.programs.as_mut().unwrap().calls[0].count = 2;
        let between = shrunk.since(&node()).programs.unwrap();
        assert_eq!(
            (between.calls[0].name, between.calls[0].count),
            ("futex", 2)
        );
    }
}

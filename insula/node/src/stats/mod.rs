//! Counters of nodes: their cores and memory and, of the lightweight kernel, what its programs did,
//! call by call.
//!
//! A node's kernel counts in memory that it shares with the base (`abi/include/insula_lwk.h`), so
//! reading costs the node nothing. All counters start with the node's last start.

mod prometheus;

use std::mem::offset_of;

pub use prometheus::prometheus;

use insula_abi::lwk::{
    COUNTERS_PAGES, Calls, Counters, Delegation, LWK_MAGIC, MAPS_PAGE, Maps, PAGE_SIZE, PAGES_MAX,
    Process, base_state,
};
use insula_base::error::Error;
use insula_driver::DriverError;
use insula_driver::channel;
use insula_lwk::syscall::call::Kind;
use insula_lwk::syscall::table;
use kimage::{PhysicalMemory, ReadError};
use nix::errno::Errno;
use serde::Serialize;
use zerocopy::FromBytes;

use crate::{Handle, NodeFinding};

/// Statistics of a node at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeStats {
    /// Its name.
    pub name: String,
    /// Its state, in OCI's terms.
    pub state: &'static str,
    /// Number of its cores.
    pub cpus: usize,
    /// Size of its memory in bytes.
    pub memory_bytes: u64,
    /// Time since its start, in nanoseconds.
    pub ran_ns: u64,
    /// What is wrong with its kernel; `None` if it is not watched.
    pub findings: Option<Vec<NodeFinding>>,
    /// Counters of its programs; only of the lightweight kernel.
    pub programs: Option<ProgramStats>,
}

/// Counters of programs on a node of the lightweight kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramStats {
    /// Present number of processes, forked ones included.
    pub processes: usize,
    /// Counters by core, in the kernel's order.
    pub cores: Vec<CoreStats>,
    /// System calls by name, most frequent first.
    pub calls: Vec<CallStats>,
}

/// Counters of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CoreStats {
    /// System calls executed by the node's kernel.
    pub local_calls: u64,
    /// System calls executed by the base.
    pub delegated_calls: u64,
    /// Page faults of programs.
    pub faults: u64,
    /// Page faults of the base on programs' memory during calls.
    pub remote_faults: u64,
    /// Calls and requests of the node's kernel itself.
    pub requests: u64,
    /// Entries to the kernel from programs.
    pub entries: u64,
    /// Context switches to threads.
    pub switches: u64,
    /// Rings of the base's doorbell.
    pub rings: u64,
}

/// Counter of a system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallStats {
    /// Name of the call.
    pub name: &'static str,
    /// Whether the base executes it.
    pub delegated: bool,
    /// Number of calls.
    pub count: u64,
}

impl CoreStats {
    fn of(counters: &Counters) -> Self {
        Self {
            local_calls: counters.local_calls,
            delegated_calls: counters.delegated_calls,
            faults: counters.faults,
            remote_faults: counters.remote_faults,
            requests: counters.requests,
            entries: counters.entries,
            switches: counters.switches,
            rings: counters.rings,
        }
    }

    /// Combines each counter with the same one of `other`.
    fn combined(&self, other: &Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            local_calls: with(self.local_calls, other.local_calls),
            delegated_calls: with(self.delegated_calls, other.delegated_calls),
            faults: with(self.faults, other.faults),
            remote_faults: with(self.remote_faults, other.remote_faults),
            requests: with(self.requests, other.requests),
            entries: with(self.entries, other.entries),
            switches: with(self.switches, other.switches),
            rings: with(self.rings, other.rings),
        }
    }

    /// All counters, with their names in metrics and descriptions.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            (
                "local_calls",
                "System calls executed by the node's kernel.",
                self.local_calls,
            ),
            (
                "delegated_calls",
                "System calls executed by the base.",
                self.delegated_calls,
            ),
            ("faults", "Page faults of programs.", self.faults),
            (
                "remote_faults",
                "Page faults of the base on programs' memory during calls.",
                self.remote_faults,
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
            ("switches", "Context switches to threads.", self.switches),
            ("rings", "Rings of the base's doorbell.", self.rings),
        ]
    }
}

impl NodeStats {
    /// Changes between two samples of the same node. If it was restarted meanwhile: all counts
    /// since its start.
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
    /// Changes since `earlier`.
    fn since(&self, earlier: &Self) -> Self {
        let cores = self.cores.iter().enumerate().map(|(index, now)| {
            let before = earlier.cores.get(index).copied().unwrap_or_default();
            now.combined(&before, increase)
        });
        let calls = self.calls.iter().filter_map(|now| {
            let mut then = earlier.calls.iter();
            let before = then.find(|call| call.name == now.name);
            let count = increase(now.count, before.map_or(0, |call| call.count));
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

    /// Sums over all cores.
    #[must_use]
    pub fn total(&self) -> CoreStats {
        let none = CoreStats::default();
        let cores = self.cores.iter();
        cores.fold(none, |sum, core| sum.combined(core, u64::saturating_add))
    }

    /// Reads the counters from a node's memory; `None` if there is no delegation area at that
    /// address.
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
        let mut counters = [0; size_of::<Calls>()];
        memory.read(area + u64::from(COUNTERS_PAGES) * PAGE_SIZE, &mut counters)?;
        Ok(Some(Self {
            processes: processes(memory, area, header.pages)?,
            cores,
            calls: calls(&counters),
        }))
    }
}

/// Number of processes that have started and whose proxies live. Maps overwritten by the node lead
/// nowhere outside of its memory.
fn processes(memory: &impl PhysicalMemory, area: u64, pages: u32) -> Result<usize, ReadError> {
    let mut process_of = vec![0; 2 * pages.min(PAGES_MAX) as usize];
    let maps = area + u64::from(MAPS_PAGE) * PAGE_SIZE;
    let at = maps + offset_of!(Maps, process_of) as u64;
    memory.read(at, &mut process_of)?;
    let (process_of, _) = process_of.as_chunks::<2>();
    let pages = (0..).zip(process_of.iter().map(|&one| u16::from_le_bytes(one)));
    let first_pages = pages.filter(|&(page, process)| page > 0 && page == u64::from(process));
    let is_running = |page: u64| {
        let mut state = [0; 8];
        let at = area + page * PAGE_SIZE + offset_of!(Process, base_state) as u64;
        let read = memory.read(at, &mut state);
        read.is_ok() && u64::from_le_bytes(state) == base_state::STARTED
    };
    Ok(first_pages.filter(|&(page, _)| is_running(page)).count())
}

/// Increase of a counter. The node may overwrite counters: a smaller value counts from 0.
fn increase(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn calls(counters: &[u8]) -> Vec<CallStats> {
    let (counts, _) = counters.as_chunks::<8>();
    let counts = (0..).zip(counts.iter().map(|&count| u64::from_le_bytes(count)));
    let named = counts.filter_map(|(number, count)| {
        let call = table::find(number)?;
        (count > 0).then_some(CallStats {
            name: call.name,
            delegated: matches!(call.kind, Kind::Delegated | Kind::Masked(_)),
            count,
        })
    });
    let mut calls: Vec<_> = named.collect();
    calls.sort_by_key(|call| std::cmp::Reverse(call.count));
    calls
}

/// Statistics of a node now.
///
/// # Errors
/// Why they cannot be read; nothing was changed.
pub fn of(handle: &Handle) -> Result<NodeStats, Error> {
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
        findings: view.watched.then_some(view.findings),
        programs,
    })
}

fn programs(handle: &Handle, channels: u64) -> Result<Option<ProgramStats>, Error> {
    let name = || handle.view().name;
    let memory = handle.node.memory().map_err(DriverError::from);
    let mapping = match memory.and_then(|memory| memory.map_for_reading()) {
        // It was removed meanwhile.
        Err(error) if error.errno() == Some(Errno::ENODEV) => return Ok(None),
        mapping => mapping.map_err(|error| {
            let what = format!("the counters of the node '{}' cannot be read", name());
            Error::new(what)
                .because(error)
                .leaving("nothing was changed")
        })?,
    };
    let area = channels + channel::AREA_SIZE;
    let ends = mapping.ranges().into_iter().map(|range| range.end);
    // Without memory behind its channels it has no delegation area.
    if !ends.clone().any(|end| area < end) {
        return Ok(None);
    }
    ProgramStats::read(&mapping, area, handle.cpus.len()).map_err(|error| {
        let what = format!(
            "the counters of the node '{}' are not at their address",
            name()
        );
        Error::new(what).because(error)
    })
}

#[cfg(test)]
mod tests {
    use insula_abi::lwk::PROCESS_PAGE;
    use std::ops::Range;

    use zerocopy::{FromZeros, IntoBytes};

    use insula_rules::Kind as FindingKind;

    use super::*;

    /// A node's memory, starting at this address.
    struct Bytes(Vec<u8>);
    const START: u64 = 0x10_0000;

    impl PhysicalMemory for Bytes {
        fn ranges(&self) -> Vec<Range<u64>> {
            std::iter::once(START..START + self.0.len() as u64).collect()
        }

        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
            let from = usize::try_from(address - START).unwrap();
            let bytes = self.0.get(from..from + into.len());
            into.copy_from_slice(bytes.ok_or(ReadError {
                address,
                size: into.len(),
            })?);
            Ok(())
        }
    }

    fn memory() -> Bytes {
        // After the counters: a running process and one whose proxy has exited, each with its
        // may-map bitmap.
        let first = PROCESS_PAGE as usize;
        let mut bytes = vec![0; (first + 4) * PAGE_SIZE as usize];
        let mut header = Delegation::new_zeroed();
        header.magic = LWK_MAGIC;
        // As a hostile node may set it: a process beyond the area and the memory.
        header.pages = PAGES_MAX + 1;
        let owners = MAPS_PAGE as usize * PAGE_SIZE as usize + offset_of!(Maps, process_of);
        bytes[owners + 2 * 300..][..2].copy_from_slice(&300_u16.to_le_bytes());
        for (process, state) in [
            (first, base_state::STARTED),
            (first + 2, base_state::EXITED),
        ] {
            for page in [process, process + 1] {
                let owner = (process as u16).to_le_bytes();
                bytes[owners + 2 * page..][..2].copy_from_slice(&owner);
            }
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
            findings: Some(vec![NodeFinding {
                kind: FindingKind::Oops,
                subject: "kernel".into(),
                detail: "why".into(),
            }]),
            programs: ProgramStats::read(&memory(), START, 2).unwrap(),
        }
    }

    #[test]
    fn counters_are_read() {
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
    fn changes_between_two_samples() {
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
    fn a_restarted_node_counts_from_zero() {
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

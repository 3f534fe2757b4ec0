//! Counters of programs on a node of the lightweight kernel, in memory that it shares with the base.

use std::mem::offset_of;

use insula_abi::lwk::{
    COUNTERS_PAGES, Calls, Core, Counters, Delegation, LWK_MAGIC, MAPS_PAGE, Maps, PAGE_SIZE,
    PAGES_MAX, Process, base_state,
};
use insula_base::error::Error;
use insula_driver::{DriverError, channel, tsc};
use insula_lwk::syscall::call::Kind;
use insula_lwk::syscall::table;
use kimage::{PhysicalMemory, ReadError};
use nix::errno::Errno;
use serde::Serialize;
use zerocopy::FromBytes;

use super::increase;
use crate::Handle;

/// Counters of programs on a node of the lightweight kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
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
    /// Time for which it did not idle, in nanoseconds.
    pub busy_ns: u64,
}

/// Counter of a system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct CallStats {
    /// Name of the call.
    pub name: &'static str,
    /// Whether the base executes it.
    pub delegated: bool,
    /// Number of calls.
    pub count: u64,
}

impl CoreStats {
    fn of(counters: &Counters, busy_ns: u64) -> Self {
        Self {
            local_calls: counters.local_calls,
            delegated_calls: counters.delegated_calls,
            faults: counters.faults,
            remote_faults: counters.remote_faults,
            requests: counters.requests,
            entries: counters.entries,
            switches: counters.switches,
            rings: counters.rings,
            busy_ns,
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
            busy_ns: with(self.busy_ns, other.busy_ns),
        }
    }

    /// All counters but that of time, with their names in metrics and descriptions.
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

impl ProgramStats {
    /// Changes since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
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

    /// Reads the counters from a node's memory, at a moment; `None` if there is no delegation area at that
    /// address.
    pub(super) fn read(
        memory: &impl PhysicalMemory,
        area: u64,
        cores: usize,
        now: Moment,
    ) -> Result<Option<Self>, ReadError> {
        let mut header = [0; size_of::<Delegation>()];
        memory.read(area, &mut header)?;
        let header = Delegation::read_from_bytes(&header).ok();
        let Some(header) = header.filter(|header| header.magic == LWK_MAGIC) else {
            return Ok(None);
        };
        let room = (u64::from(COUNTERS_PAGES) - 1) * PAGE_SIZE / size_of::<Counters>() as u64;
        let cores = (0..room.min(cores as u64)).map(|core| {
            let counters: Counters = read(memory, area + PAGE_SIZE, core)?;
            let words: Core = read(memory, area + CORES_PAGE * PAGE_SIZE, core)?;
            Ok(CoreStats::of(&counters, now.busy_ns(&words)))
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

/// A moment, by the time stamp counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) tsc: u64,
    /// The counter's frequency.
    pub(super) tsc_khz: u32,
}

impl Moment {
    /// For how long a core has worked.
    fn busy_ns(self, core: &Core) -> u64 {
        let ns =
            u128::from(core.busy_ticks(self.tsc)) * 1_000_000 / u128::from(self.tsc_khz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Page of the area that has the words of the first cores.
const CORES_PAGE: u64 = 1 + COUNTERS_PAGES as u64;

/// Reads an element of an array in a node's memory.
fn read<T: FromBytes>(
    memory: &impl PhysicalMemory,
    start: u64,
    index: u64,
) -> Result<T, ReadError> {
    let mut bytes = vec![0; size_of::<T>()];
    memory.read(start + index * bytes.len() as u64, &mut bytes)?;
    // It has that size.
    Ok(T::read_from_bytes(&bytes).unwrap_or_else(|_| T::new_zeroed()))
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

/// Those of a node's programs now.
pub(super) fn of(
    handle: &Handle,
    channels: u64,
    tsc_khz: u32,
) -> Result<Option<ProgramStats>, Error> {
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
    let now = Moment {
        tsc: tsc(),
        tsc_khz,
    };
    ProgramStats::read(&mapping, area, handle.cpus.len(), now).map_err(|error| {
        let what = format!(
            "the counters of the node '{}' are not at their address",
            name()
        );
        Error::new(what).because(error)
    })
}

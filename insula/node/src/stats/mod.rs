//! Counters of nodes: their cores, memory and devices and, of the lightweight kernel, what its programs did,
//! call by call.
//!
//! A lightweight kernel counts in memory that it shares with the base (`abi/include/insula_lwk.h`), so
//! reading costs the node nothing. Linux is asked by its agent (`insula_exec::agent::add_usage`). All counters start with the
//! node's last start.

mod programs;
mod prometheus;

pub use programs::{CallStats, CoreStats, ProgramStats};
pub use prometheus::prometheus;

use insula_agent::usage::{Traffic, Usage};
use insula_base::error::Error;
use serde::Serialize;

use crate::{Handle, NodeFinding};

/// Statistics of a node at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
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
    /// What its kernel says that it has used; only of Linux with an agent that answers.
    pub usage: Option<Usage>,
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
        let usage = self.usage.map(|now| match is_same_start {
            // Its agent may not have answered before.
            true => usage_since(now, earlier.usage.unwrap_or(now)),
            false => now,
        });
        Self {
            programs,
            usage,
            ..self.clone()
        }
    }

    /// Time for which its cores worked, all together, in nanoseconds; none if that is not known.
    #[must_use]
    pub fn cpu_ns(&self) -> Option<u64> {
        let of_programs = self
            .programs
            .as_ref()
            .map(|programs| programs.total().busy_ns);
        of_programs.or(self.usage.map(|usage| usage.cpu_ns))
    }
}

/// What was used since `earlier`, and the memory in use now.
fn usage_since(now: Usage, earlier: Usage) -> Usage {
    let traffic = |now: Traffic, earlier: Traffic| Traffic {
        in_bytes: increase(now.in_bytes, earlier.in_bytes),
        out_bytes: increase(now.out_bytes, earlier.out_bytes),
    };
    Usage {
        cpu_ns: increase(now.cpu_ns, earlier.cpu_ns),
        network: traffic(now.network, earlier.network),
        disks: traffic(now.disks, earlier.disks),
        ..now
    }
}

/// Increase of a counter. The node may overwrite counters: a smaller value counts from 0.
fn increase(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// Statistics of a node now, without [`NodeStats::usage`]. The time stamp counter has this frequency.
///
/// # Errors
/// Why they cannot be read; nothing was changed.
pub fn of(handle: &Handle, tsc_khz: u32) -> Result<NodeStats, Error> {
    let view = handle.view();
    let programs = match handle.record.as_ref().map(|record| record.channels) {
        Some(channels) if channels > 0 && handle.is_running() => {
            programs::of(handle, channels, tsc_khz)?
        }
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
        usage: None,
    })
}

/// Number of processes on a node of the lightweight kernel that runs; none if that is not known.
#[must_use]
pub fn processes(handle: &Handle) -> Option<usize> {
    // No time is asked for, so the frequency does not matter.
    let programs = of(handle, 1).ok()?.programs?;
    Some(programs.processes)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::ops::Range;

    use insula_abi::lwk::{
        COUNTERS_PAGES, Core, Counters, Delegation, LWK_MAGIC, MAPS_PAGE, Maps, PAGE_SIZE,
        PAGES_MAX, PROCESS_PAGE, base_state,
    };
    use insula_rules::Kind as FindingKind;
    use kimage::{PhysicalMemory, ReadError};
    use zerocopy::{FromZeros, IntoBytes};

    use super::programs::Moment;
    use super::*;

    /// At which the first core has worked for 3 ms, the second for 1.
    const NOW: Moment = Moment {
        tsc: 10_000,
        tsc_khz: 1000,
    };

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
            let words = Core {
                up_since: 5_000,
                idle_ticks: match core {
                    0 => 2_000,
                    _ => Core::begun_to_idle(1_000, 7_000),
                },
                ..Core::new_zeroed()
            };
            let at = (1 + COUNTERS_PAGES as usize) * PAGE_SIZE as usize;
            let at = at + core as usize * size_of::<Core>();
            bytes[at..at + size_of::<Core>()].copy_from_slice(words.as_bytes());
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
            programs: ProgramStats::read(&memory(), START, 2, NOW).unwrap(),
            usage: None,
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
        let busy: Vec<_> = programs.cores.iter().map(|core| core.busy_ns).collect();
        assert_eq!(busy, [3_000_000, 1_000_000]);
        assert_eq!(node().cpu_ns(), Some(4_000_000));
        let calls: Vec<_> = programs
            .calls
            .iter()
            .map(|call| (call.name, call.delegated, call.count))
            .collect();
        assert_eq!(calls, [("futex", false, 9), ("write", true, 7)]);
        let nothing = Bytes(vec![0; 4096]);
        assert_eq!(ProgramStats::read(&nothing, START, 2, NOW).unwrap(), None);
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
    fn what_linux_used_between_two_samples() {
        let traffic = |in_bytes, out_bytes| Traffic {
            in_bytes,
            out_bytes,
        };
        let usage = |count| Usage {
            cpu_ns: 10 * count,
            memory_bytes: 100,
            memory_available_bytes: 90 - count,
            network: traffic(count, 2 * count),
            disks: traffic(3 * count, 4 * count),
        };
        let linux = |count, ran_ns| NodeStats {
            programs: None,
            usage: Some(usage(count)),
            ran_ns,
            ..node()
        };
        let between = linux(7, 9).since(&linux(2, 8));
        let memory = Usage {
            memory_available_bytes: 83,
            ..usage(5)
        };
        assert_eq!((between.usage, between.cpu_ns()), (Some(memory), Some(50)));
        // It was restarted.
        assert_eq!(linux(7, 3).since(&linux(2, 8)).usage, Some(usage(7)));
        let silent = NodeStats {
            usage: None,
            ..linux(2, 8)
        };
        let first = linux(7, 9).since(&silent);
        let available = first.usage.unwrap().memory_available_bytes;
        assert_eq!((first.cpu_ns(), available), (Some(0), 83));
        assert_eq!(silent.since(&linux(2, 8)).usage, None);
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

//! Choosing cores.
//!
//! Core 0 is never chosen: the base boots on it and takes its interrupts there. Physical cores are
//! given whole: of a hyper-threaded one either all threads or none, unless threads are listed by
//! number.

mod error;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use insula_abi::{Cpu, CpuOwner};
use insula_base::error::Error;
use insula_base::topology::Topology;
use insula_base::units::CpuList;
use serde::Serialize;

use error::{core_zero, offline, owned, partial_core, too_many, twice, unknown};

/// The cores that a user asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreRequest {
    /// That many, whichever suit best.
    Count(u32),
    /// These; the first boots.
    List(CpuList),
}

/// A chosen core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenCore {
    /// The base's number for it.
    pub cpu: u32,
    /// Physical id of its local APIC.
    pub apic_id: u32,
}

/// A core, by sysfs and the module together.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    cpu: u32,
    apic_id: u32,
    owner: CpuOwner,
    online: bool,
    numa_node: Option<u32>,
    /// Number of the physical core: equal for all its threads.
    core: u32,
}

impl Candidate {
    fn is_free(&self) -> bool {
        let base = self.owner == CpuOwner::BASE && self.online;
        self.cpu != 0 && (base || self.owner == CpuOwner::POOL)
    }
}

/// The machine's cores at one moment, to choose from.
#[derive(Clone, Debug)]
pub struct Cores {
    candidates: Vec<Candidate>,
}

impl Cores {
    /// Joins sysfs and the module's list. Cores of a node or of the pool are offline, and sysfs
    /// does not show their siblings; those are found by the APIC id, whose low bits number a core's
    /// threads (Intel SDM volume 3, "Programming considerations for hardware multi-threading").
    #[must_use]
    pub fn new(topology: &Topology, cpus: &[Cpu]) -> Self {
        let apic_ids: BTreeMap<u32, u32> = cpus.iter().map(|cpu| (cpu.cpu, cpu.apic_id)).collect();
        let shift = thread_bits(topology, &apic_ids);
        let candidate = |cpu: &Cpu| {
            let processor = topology.processors.get(&cpu.cpu);
            Candidate {
                cpu: cpu.cpu,
                apic_id: cpu.apic_id,
                owner: cpu.owner,
                online: processor.is_some_and(|processor| processor.online),
                numa_node: processor.and_then(|processor| processor.numa_node),
                core: cpu.apic_id >> shift,
            }
        };
        Self {
            candidates: cpus.iter().map(candidate).collect(),
        }
    }

    /// Chooses cores; the first one boots. By count it prefers those of the pool, then those on
    /// `numa_node`, then those on one NUMA node that has enough, then the highest numbers.
    ///
    /// # Errors
    /// Why they are not available; nothing was touched.
    pub fn choose(
        &self,
        request: &CoreRequest,
        numa_node: Option<u32>,
    ) -> Result<Vec<ChosenCore>, Error> {
        match request {
            CoreRequest::List(list) => self.choose_listed(&list.0),
            CoreRequest::Count(count) => self.choose_count(*count, numa_node),
        }
    }

    /// Marks these cores as a node's.
    pub fn mark_used(&mut self, chosen: &[ChosenCore]) {
        let is_chosen = |one: &Candidate| chosen.iter().any(|taken| taken.cpu == one.cpu);
        for candidate in self.candidates.iter_mut().filter(|one| is_chosen(one)) {
            candidate.owner = CpuOwner::NODE;
        }
    }

    /// Marks these cores as free: those of nodes that will be gone.
    pub fn mark_free(&mut self, cpus: &[u32]) {
        for candidate in &mut self.candidates {
            if cpus.contains(&candidate.cpu) {
                candidate.owner = CpuOwner::POOL;
            }
        }
    }

    /// Of the chosen cores, those that share a physical core with threads that were not chosen.
    #[must_use]
    pub(crate) fn split_cores(&self, chosen: &[ChosenCore]) -> Vec<u32> {
        let ours = |candidate: &Candidate| chosen.iter().any(|one| one.cpu == candidate.cpu);
        let shared = |candidate: &&Candidate| {
            let mut mates = self
                .candidates
                .iter()
                .filter(|mate| mate.core == candidate.core);
            mates.any(|mate| !ours(mate))
        };
        self.candidates
            .iter()
            .filter(|one| ours(one))
            .filter(shared)
            .map(|one| one.cpu)
            .collect()
    }

    /// APIC ids of at most `count` other cores that a node could get later, free ones first.
    #[must_use]
    pub fn spare_apic_ids(&self, chosen: &[ChosenCore], count: usize) -> Vec<u32> {
        let other = |one: &&Candidate| one.cpu != 0 && !chosen.iter().any(|c| c.cpu == one.cpu);
        let mut spare_apic_ids: Vec<_> = self.candidates.iter().filter(other).collect();
        spare_apic_ids.sort_by_key(|one| (!one.is_free(), Reverse(one.cpu)));
        spare_apic_ids
            .iter()
            .take(count)
            .map(|one| one.apic_id)
            .collect()
    }

    /// The first `count` of these cores that are free; `None` when there are fewer.
    #[must_use]
    pub(crate) fn choose_among(&self, apic_ids: &[u32], count: u32) -> Option<Vec<ChosenCore>> {
        let chosen: Vec<_> = self.free_of(apic_ids).take(count as usize).collect();
        (chosen.len() == count as usize).then_some(chosen)
    }

    /// Number of free cores among these.
    #[must_use]
    pub(crate) fn free_among(&self, apic_ids: &[u32]) -> usize {
        self.free_of(apic_ids).count()
    }

    fn free_of(&self, apic_ids: &[u32]) -> impl Iterator<Item = ChosenCore> {
        let found = apic_ids.iter().filter_map(|&apic_id| {
            let mut candidates = self.candidates.iter();
            candidates.find(|one| one.apic_id == apic_id && one.is_free())
        });
        found.map(|one| ChosenCore {
            cpu: one.cpu,
            apic_id: one.apic_id,
        })
    }

    fn choose_listed(&self, list: &[u32]) -> Result<Vec<ChosenCore>, Error> {
        for (index, cpu) in list.iter().enumerate() {
            if list[..index].contains(cpu) {
                return Err(twice(*cpu));
            }
        }
        list.iter().map(|&cpu| self.choose_one(cpu)).collect()
    }

    fn choose_one(&self, cpu: u32) -> Result<ChosenCore, Error> {
        let Some(candidate) = self
            .candidates
            .iter()
            .find(|candidate| candidate.cpu == cpu)
        else {
            let there = self.candidates.iter().map(|candidate| candidate.cpu);
            return Err(unknown(cpu, CpuList(there.collect())));
        };
        match candidate {
            _ if cpu == 0 => Err(core_zero()),
            Candidate { apic_id, .. } if candidate.is_free() => Ok(ChosenCore {
                cpu,
                apic_id: *apic_id,
            }),
            Candidate {
                owner: CpuOwner::BASE,
                ..
            } => Err(offline(cpu)),
            _ => Err(owned(cpu)),
        }
    }

    fn choose_count(&self, count: u32, numa_node: Option<u32>) -> Result<Vec<ChosenCore>, Error> {
        let mut cores = self.free_whole_cores();
        let per_node = count_per_node(&cores);
        cores.sort_by_key(|core| {
            let first = core[0];
            let enough = per_node
                .get(&first.numa_node)
                .is_some_and(|&there| there >= count);
            let elsewhere = numa_node.is_some() && first.numa_node != numa_node;
            let from_base = core.iter().any(|one| one.owner != CpuOwner::POOL);
            (
                from_base,
                elsewhere,
                !enough,
                first.numa_node,
                Reverse(first.cpu),
            )
        });
        // With physical cores of different widths the preferred ones may not add up; the widest
        // first always do.
        let chosen = choose_exactly(&cores, count).or_else(|| {
            cores.sort_by_key(|core| Reverse(core.len()));
            choose_exactly(&cores, count)
        });
        chosen.ok_or_else(|| self.too_many(count))
    }

    /// Physical cores whose threads are all free, each as its threads in ascending order.
    fn free_whole_cores(&self) -> Vec<Vec<Candidate>> {
        let mut cores = BTreeMap::<u32, Vec<Candidate>>::new();
        for candidate in &self.candidates {
            cores.entry(candidate.core).or_default().push(*candidate);
        }
        cores
            .into_values()
            .filter(|core| core.iter().all(Candidate::is_free))
            .collect()
    }

    fn too_many(&self, requested: u32) -> Error {
        let cores = self.free_whole_cores();
        let free: usize = cores.iter().map(Vec::len).sum();
        let threads = cores.iter().map(Vec::len).min().unwrap_or(1);
        match requested as usize <= free {
            true => partial_core(requested, threads),
            false => too_many(requested, free, self.candidates.len()),
        }
    }
}

/// Number of free threads on each NUMA node.
fn count_per_node(cores: &[Vec<Candidate>]) -> BTreeMap<Option<u32>, u32> {
    let mut counts = BTreeMap::new();
    for one in cores.iter().flatten() {
        *counts.entry(one.numa_node).or_insert(0) += 1;
    }
    counts
}

/// Takes whole cores in order, skipping those that do not fit, until there are `count` threads.
fn choose_exactly(cores: &[Vec<Candidate>], count: u32) -> Option<Vec<ChosenCore>> {
    let mut chosen = Vec::new();
    for core in cores {
        if chosen.len() + core.len() <= count as usize {
            chosen.extend(core.iter().map(|one| ChosenCore {
                cpu: one.cpu,
                apic_id: one.apic_id,
            }));
        }
    }
    chosen.sort_by_key(|one| one.cpu);
    (chosen.len() == count as usize).then_some(chosen)
}

/// Number of low bits of an APIC id that number the threads of a core: the fewest with which the
/// threads of every online core have one core number.
fn thread_bits(topology: &Topology, apic_ids: &BTreeMap<u32, u32>) -> u32 {
    let ids = |siblings: &[u32]| -> Vec<u32> {
        siblings
            .iter()
            .filter_map(|cpu| apic_ids.get(cpu).copied())
            .collect()
    };
    let spread = |ids: Vec<u32>| ids.iter().fold(0, |bits, id| bits | (id ^ ids[0]));
    let groups = topology
        .processors
        .values()
        .map(|processor| ids(&processor.siblings));
    let widest = groups
        .filter(|ids| !ids.is_empty())
        .map(spread)
        .max()
        .unwrap_or(0);
    // 31: a shift by 32 bits would overflow, and no core has 2^31 threads.
    (u32::BITS - widest.leading_zeros()).min(31)
}

#[cfg(test)]
mod tests;

//! Choosing cores.
//!
//! Core 0 is never chosen: the base boots on it and takes its interrupts there. Physical cores are
//! given whole: of a hyper-threaded one either all threads or none, unless threads are listed by
//! number.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use insula_abi::{Cpu, CpuOwner};
use insula_base::error::{Error, Kind};
use insula_base::topology::Topology;
use insula_base::units::CpuList;
use serde::Serialize;

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

fn refused(what: String) -> Error {
    Error::new(what).untouched()
}

/// An error about cores that a later attempt may get.
fn unavailable(what: String) -> Error {
    refused(what).with_kind(Kind::Unavailable)
}

fn core_zero() -> Error {
    refused("core 0 is not available, the base boots and runs on it".into())
        .hint("choose other cores: `insula machine info` lists them")
}

fn unknown(cpu: u32, there: CpuList) -> Error {
    refused(format!("there is no core {cpu}: the machine has {there}")).hint("choose one of these")
}

fn twice(cpu: u32) -> Error {
    refused(format!("core {cpu} is listed twice")).hint("list each core once")
}

fn owned(cpu: u32) -> Error {
    unavailable(format!("core {cpu} belongs to a node"))
        .hint("choose another, or stop that node: `insula machine info` shows which")
}

fn offline(cpu: u32) -> Error {
    let online = format!("echo 1 | sudo tee /sys/devices/system/cpu/cpu{cpu}/online");
    unavailable(format!("core {cpu} is offline"))
        .hint(format!("choose another, or first `{online}`"))
}

fn too_many(requested: u32, free: usize, there: usize) -> Error {
    unavailable(format!(
        "{requested} cores requested, {free} available (of {there}, excluding core 0 and nodes' \
         cores)"
    ))
    .hint("request fewer, or stop a node: `insula machine info` shows the owner of each core")
}

/// The number is not one of whole cores' threads.
fn partial_core(requested: u32, threads: usize) -> Error {
    refused(format!(
        "{requested} threads are not a number of whole cores, each has {threads} hyper-threads"
    ))
    .hint(format!(
        "request a multiple of {threads}, or list single threads with --cpu-list"
    ))
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
mod tests {
    use insula_base::topology::Processor;

    use super::*;

    /// A machine of `threads`-way cores, two NUMA nodes of equal size; sysfs hides the siblings of
    /// offline cores, as Linux does.
    fn machine(count: u32, threads: u32, owners: &[(u32, CpuOwner)]) -> Cores {
        let owner = |cpu| {
            owners
                .iter()
                .find(|o| o.0 == cpu)
                .map_or(CpuOwner::BASE, |o| o.1)
        };
        let online = |cpu: &u32| owner(*cpu) == CpuOwner::BASE;
        let processor = |cpu: u32| {
            let first = cpu - cpu % threads;
            let siblings = (first..first + threads).filter(online).collect();
            let (online, numa_node) = (online(&cpu), Some(cpu * 2 / count));
            let siblings = if online { siblings } else { vec![] };
            (
                cpu,
                Processor {
                    online,
                    siblings,
                    package: None,
                    numa_node,
                },
            )
        };
        let topology = Topology {
            processors: (0..count).map(processor).collect(),
            ..Default::default()
        };
        let cpu = |cpu| Cpu {
            cpu,
            apic_id: cpu,
            owner: owner(cpu),
            node: 0,
        };
        Cores::new(&topology, &(0..count).map(cpu).collect::<Vec<_>>())
    }

    fn chosen(result: Result<Vec<ChosenCore>, Error>) -> Vec<u32> {
        result.unwrap().iter().map(|one| one.cpu).collect()
    }

    fn refusal(result: Result<Vec<ChosenCore>, Error>) -> String {
        result.unwrap_err().what
    }

    fn count(view: &Cores, count: u32, numa_node: Option<u32>) -> Result<Vec<ChosenCore>, Error> {
        view.choose(&CoreRequest::Count(count), numa_node)
    }

    fn list(view: &Cores, text: &str) -> Result<Vec<ChosenCore>, Error> {
        view.choose(&CoreRequest::List(text.parse().unwrap()), None)
    }

    #[test]
    fn the_highest_on_one_node_are_preferred() {
        let view = machine(8, 1, &[]);
        assert_eq!(chosen(count(&view, 1, None)), [3]);
        assert_eq!(chosen(count(&view, 4, None)), [4, 5, 6, 7]);
        assert_eq!(chosen(count(&view, 2, Some(1))), [6, 7]);
        assert_eq!(chosen(count(&view, 7, None)), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn pool_cores_are_preferred_and_nodes_keep_theirs() {
        let owners = [(2, CpuOwner::POOL), (3, CpuOwner::NODE)];
        let view = machine(4, 1, &owners);
        assert_eq!(chosen(count(&view, 1, None)), [2]);
        assert_eq!(chosen(count(&view, 2, None)), [1, 2]);
        let why = "3 cores requested, 2 available (of 4, excluding core 0 and nodes' cores)";
        assert_eq!(refusal(count(&view, 3, None)), why);
    }

    #[test]
    fn physical_cores_are_given_whole() {
        let view = machine(8, 2, &[(5, CpuOwner::NODE)]);
        assert_eq!(chosen(count(&view, 2, None)), [2, 3]);
        assert_eq!(chosen(count(&view, 4, None)), [2, 3, 6, 7]);
        let why = "1 threads are not a number of whole cores, each has 2 hyper-threads";
        assert_eq!(refusal(count(&view, 1, None)), why);
        let why = "5 cores requested, 4 available (of 8, excluding core 0 and nodes' cores)";
        assert_eq!(refusal(count(&view, 5, None)), why);
    }

    #[test]
    fn a_pooled_core_is_complete_though_sysfs_hides_its_siblings() {
        let view = machine(8, 2, &[(6, CpuOwner::POOL), (7, CpuOwner::POOL)]);
        assert_eq!(chosen(count(&view, 2, None)), [6, 7]);
    }

    #[test]
    fn lists_keep_their_order_and_may_split_cores() {
        let view = machine(8, 2, &[]);
        let both = list(&view, "5,2").unwrap();
        assert_eq!(both.iter().map(|one| one.cpu).collect::<Vec<_>>(), [5, 2]);
        assert_eq!(view.split_cores(&both), [2, 5]);
        assert!(view.split_cores(&list(&view, "4-5").unwrap()).is_empty());
    }

    #[test]
    fn impossible_lists_are_refused() {
        let mut view = machine(4, 1, &[(2, CpuOwner::NODE)]);
        view.candidates[3].online = false;
        let refused = |text| refusal(list(&view, text));
        let zero = "core 0 is not available, the base boots and runs on it";
        assert_eq!(refused("0"), zero);
        assert_eq!(refused("1,1"), "core 1 is listed twice");
        assert_eq!(refused("2"), "core 2 belongs to a node");
        assert_eq!(refused("3"), "core 3 is offline");
        assert_eq!(refused("9"), "there is no core 9: the machine has 0-3");
    }

    #[test]
    fn spares_are_other_cores_free_ones_first() {
        let view = machine(5, 1, &[(4, CpuOwner::NODE)]);
        let own = list(&view, "2").unwrap();
        assert_eq!(view.spare_apic_ids(&own, 10), [3, 1, 4]);
        assert_eq!(view.spare_apic_ids(&own, 1), [3]);
    }

    #[test]
    fn the_first_free_cores_of_a_list_are_chosen() {
        let view = machine(5, 1, &[(2, CpuOwner::NODE), (4, CpuOwner::POOL)]);
        let among = |count| {
            let chosen = view.choose_among(&[4, 2, 0, 1, 9], count)?;
            Some(chosen.iter().map(|one| one.cpu).collect::<Vec<_>>())
        };
        assert_eq!(among(1), Some(vec![4]));
        assert_eq!(among(2), Some(vec![4, 1]));
        assert_eq!(among(3), None);
        assert_eq!(view.free_among(&[4, 2, 0, 1, 9]), 2);
    }

    #[test]
    fn cores_of_different_widths_add_up() {
        let mut view = machine(4, 1, &[]);
        for (candidate, core) in view.candidates.iter_mut().zip([0, 1, 1, 2]) {
            candidate.core = core;
        }
        assert_eq!(chosen(count(&view, 2, None)), [1, 2]);
        assert_eq!(chosen(count(&view, 1, None)), [3]);
    }
}

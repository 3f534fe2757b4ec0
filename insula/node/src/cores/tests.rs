//! Tests of choosing cores.

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

//! Two stock kernels beside the base, at once.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::base::scenario::MITIGATIONS;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, numbers, with_cleanup,
};
use crate::base::support::load::Load;
use crate::base::support::nodes::test_node::{TestNode, add_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "two_nodes",
    proves: "6.1 and 6.12 run natively beside a loaded base at one instant, where they were put",
    machine: Shape {
        memory_mib: 6144,
        append: MITIGATIONS,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(400),
    soak_limit: None,
    play,
};

const FOUR_GIB: u64 = 4 << 30;
/// Memory below this address is where a node's cores start: the user does not request it.
const ONE_MIB: u64 = 1 << 20;
/// Checks between which both must have made progress.
const CHECKS: u32 = 3;

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        add_image(context, "old", "6.1")?;
        add_image(context, "new", "6.12")?;
        let before = Resources::now()?;
        let load = Load::start()?;
        let began = SystemTime::now();
        let nodes = start_both()?;
        nodes[0].assert_ready(&context.release("6.1")?)?;
        nodes[1].assert_ready(&context.release("6.12")?)?;
        check_places(&nodes)?;
        check_cores(&nodes)?;
        no_hypervisor()?;
        log_has_times(&nodes[0], began)?;
        for _ in 0..CHECKS {
            work_at_once(&nodes)?;
        }
        load.assert_busy()?;
        drop(load);
        nodes.iter().try_for_each(TestNode::remove)?;
        assert_unchanged(&before)
    })
}

fn start_both() -> Result<[TestNode; 2], Finding> {
    let below = "288M,below=4G,chunk=96M";
    let small = ["--cpus", "1", "--memory", below];
    let large = ["--cpus", "2", "--memory", "256M,above=4G"];
    Ok([
        TestNode::start("low", &["--image", "old"], &small, "compute")?,
        TestNode::start("high", &["--image", "new"], &large, "compute")?,
    ])
}

/// Records have the base's times, by which they can be chosen.
fn log_has_times(node: &TestNode, began: SystemTime) -> Result<(), Finding> {
    let before = humantime::format_rfc3339(began).to_string();
    let logs = |option, time: &str| insula(&["logs", "-t", option, time, &node.name]);
    assert_equal(
        "logged before its start",
        &logs("--until", &before)?.as_str(),
        &"",
    )?;
    let logged = logs("--since", &before)?;
    let first = logged.lines().next().unwrap_or_default();
    let (time, line) = first.split_once(' ').unwrap_or_default();
    Finding::unless(line.contains("Linux version"), || format!("first: {first}"))?;
    let time = humantime::parse_rfc3339(time).map_err(|error| Finding::new(error.to_string()))?;
    Finding::unless((began..SystemTime::now()).contains(&time), || {
        format!("begun at {before}, logged: {first}")
    })?;
    assert_equal(
        "logged in the future",
        &logs("--since", "2999-01-01T00:00:00Z")?.as_str(),
        &"",
    )
}

/// The first has several chunks, all below 4 GiB, the second lies above.
fn check_places([low, high]: &[TestNode; 2]) -> Result<(), Finding> {
    let (below, above) = (chunks(low)?, chunks(high)?);
    let is_below = below.iter().all(|&(start, size)| start + size <= FOUR_GIB);
    Finding::unless(below.len() >= 3 && is_below, || {
        format!("not several chunks below 4 GiB: {below:x?}")
    })?;
    let is_above = above.iter().all(|&(start, _)| start >= FOUR_GIB);
    Finding::unless(!above.is_empty() && is_above, || {
        format!("not above 4 GiB: {above:x?}")
    })
}

/// Start and size of each chunk that the user requested.
fn chunks(node: &TestNode) -> Result<Vec<(u64, u64)>, Finding> {
    let view = node.inspect()?;
    let chunks = view["memory"].as_array().into_iter().flatten();
    let chunks = chunks.filter_map(|one| Some((one["start"].as_u64()?, one["size"].as_u64()?)));
    Ok(chunks.filter(|&(start, _)| start >= ONE_MIB).collect())
}

/// The base runs on none of their cores, and knows their owners.
fn check_cores(nodes: &[TestNode; 2]) -> Result<(), Finding> {
    let resources = Resources::now()?;
    assert_equal("the base's cores", &resources.online.as_str(), &"0")?;
    for node in nodes {
        let had = resources.cores.iter().filter(|core| core.2 == node.name);
        let had: Vec<u64> = had.map(|core| core.0).collect();
        let mut taken: Vec<u64> = node.cpus.iter().copied().map(u64::from).collect();
        taken.sort_unstable();
        assert_equal(&format!("cores of {}", node.name), &had, &taken)?;
        let apic_ids = numbers(&node.inspect()?["apic_ids"]);
        assert_equal(
            &format!("APICs of {}", node.name),
            &apic_ids,
            &node.apic_ids,
        )?;
    }
    Ok(())
}

/// Nodes run on the processor itself, without a hypervisor.
fn no_hypervisor() -> Result<(), Finding> {
    for path in ["/sys/module/kvm", "/dev/kvm"] {
        Finding::unless(!Path::new(path).exists(), || format!("there is {path}"))?;
    }
    for process in fs::read_dir("/proc")? {
        let name = fs::read_to_string(process?.path().join("comm")).unwrap_or_default();
        Finding::unless(!name.contains("qemu"), || format!("there is a {name}"))?;
    }
    Ok(())
}

/// Both make progress between two checks, and run at both of them.
fn work_at_once(nodes: &[TestNode; 2]) -> Result<(), Finding> {
    let listed = insula_json(&["ps", "--json"])?;
    let running = |node: &Value| node["state"] == "running";
    let both = listed
        .as_array()
        .is_some_and(|list| list.len() == 2 && list.iter().all(running));
    Finding::unless(both, || format!("not both run: {listed}"))?;
    std::thread::scope(|scope| {
        let checks = nodes
            .each_ref()
            .map(|node| scope.spawn(|| node.assert_works()));
        checks.into_iter().try_for_each(|check| {
            check
                .join()
                .unwrap_or_else(|_| Err(Finding::new("a check of a node panicked")))
        })
    })
}

//! A running node gets more cores and memory, and gives them back.

use std::process::Stdio;
use std::time::Duration;

use fastrand::Rng;
use serde_json::Value;

use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, numbers, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "update",
    proves: "a running node gets a core and memory, uses both, gives them back, and leaks nothing",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(3500)),
    play,
};

const NAME: &str = "growing";
const NEIGHBOUR: &str = "neighbour";
/// Memory at its start, and memory that is added, in MiB.
const BEGINS_MIB: u64 = 160;
const MORE_MIB: u64 = 128;
/// Usable part of the added memory: the kernel needs some for its `struct page` and for the core;
/// 6.12 counts 10 to 11 MiB as not available.
const USABLE_MIB: u64 = MORE_MIB - 16;
const GROW: [&str; 6] = ["update", "--cpus", "+1", "--memory", "+128M", NAME];
const SHRINK: [&str; 6] = ["update", "--cpus", "-1", "--memory", "-128M", NAME];
const BEGIN: [&str; 6] = ["update", "--cpus", "1", "--memory", "160M", NAME];
/// Pause between two checks of a node's log.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// An update is killed at a random moment up to this one, longer than it usually takes.
const LATEST_KILL_MS: u64 = 1500;

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        for version in ["6.1", "6.12"] {
            peer_image(context, version)?;
        }
        let empty = Resources::now()?;
        let neighbour = neighbour(context)?;
        let with_nodes = Resources::now()?;
        for (version, more) in [("6.1", killed_updates as Part), ("6.12", restart_keeps)] {
            let in_context = |error: Finding| error.when(&format!("with a node of {version}"));
            with_node(context, version, &[], more).map_err(in_context)?;
            assert_unchanged(&with_nodes).map_err(in_context)?;
            neighbour.assert_works()?;
        }
        has_no_module(&neighbour)?;
        neighbour.assert_works()?;
        neighbour.remove()?;
        assert_unchanged(&empty)
    })
}

fn neighbour(context: &Context) -> Result<TestNode, Finding> {
    let image = peer_image(context, "6.12")?;
    let source = ["--image", &image];
    // Its core list lacks the cores that the other node is to have.
    let size = ["--cpu-list", "1", "--max-cpus", "2", "--memory", "192M"];
    let node = TestNode::start(NEIGHBOUR, &source, &size, "compute pace=1")?;
    node.wait_until_ready()?;
    Ok(node)
}

/// Further test with one of the nodes.
type Part = fn(&Context, &TestNode) -> Result<(), Finding>;

/// Updates a node both ways, started with the further arguments `source`.
pub(in crate::base::scenario) fn with_node(
    context: &Context,
    version: &str,
    source: &[&str],
    more: Part,
) -> Result<(), Finding> {
    let image = peer_image(context, version)?;
    let source = [&["--image", &image][..], source].concat();
    let size = ["--cpus", "1", "--max-cpus", "2", "--memory", "160M"];
    // While it fills its memory it can give none back: many updates then take long.
    let until = context.select("shrunk", "never");
    let node = TestNode::start(NAME, &source, &size, &format!("resources until={until}"))?;
    let first = report(&node, 1, BEGINS_MIB)?;
    let before = Resources::now()?;
    refusals()?;
    assert_unchanged(&before)?;

    let grown = insula_json(&[&GROW[..], &["--json"]].concat())?;
    assert_equal("cores", &numbers(&grown["cpus"]).len(), &2)?;
    let second = report(&node, 2, BEGINS_MIB + MORE_MIB)?;
    Finding::unless(second.filled_mib >= first.filled_mib + USABLE_MIB, || {
        format!("the node fills {second:?}, and before the update {first:?}")
    })?;
    assert_chunks(&node, &grown)?;

    insula(&SHRINK)?;
    assert_unchanged(&before)?;
    report(&node, 1, BEGINS_MIB)?;

    more(context, &node)?;
    node.remove()
}

/// Report of the node since its last change.
#[derive(Debug)]
struct Report {
    filled_mib: u64,
}

/// Waits until the node reports that many cores, each with the same computed result, and about that
/// much memory, all of it filled and verified.
fn report(node: &TestNode, cpus: usize, memory_mib: u64) -> Result<Report, Finding> {
    wait_for(
        &format!("{cpus} cores and {memory_mib} MiB to be used"),
        || {
            std::thread::sleep(CHECK_INTERVAL);
            let line = node.last_line("resources ")?.unwrap_or_default();
            let option = |name: &str| {
                let mut words = line.split(' ').filter_map(|word| word.strip_prefix(name));
                words.next().unwrap_or_default().to_owned()
            };
            let sums: Vec<_> = option("sums=").split(',').map(str::to_owned).collect();
            let reported_mib: u64 = option("memory_mib=").parse().unwrap_or_default();
            // A kernel reserves some of its initial memory.
            let fits = reported_mib <= memory_mib && reported_mib + MORE_MIB > memory_mib;
            if sums.len() != cpus || !fits {
                return Ok(None);
            }
            let same = sums.iter().all(|sum| *sum == sums[0] && !sum.is_empty());
            Finding::unless(same && option("bad_mib=") == "0", || {
                format!("the node reported {line}")
            })?;
            Ok(Some(Report {
                filled_mib: option("filled_mib=").parse()?,
            }))
        },
    )
}

/// Refused without side effects.
fn refusals() -> Result<(), Finding> {
    let refuse = |words: &[&str], parts: &[&str]| {
        try_insula(&[&["update", NAME], words].concat())?.refused(1, parts)
    };
    refuse(
        &["--cpus", "+2"],
        &["room for 2", "nothing was touched", "--max-cpus 3"],
    )?;
    refuse(&["--cpus", "-1"], &["boot core", "nothing was touched"])?;
    refuse(
        &["--memory", "+64M"],
        &["blocks of 128M", "nothing was touched"],
    )?;
    refuse(
        &["--memory", "-128M"],
        &["can only give up", "nothing was touched"],
    )?;
    refuse(
        &["--memory", "+1T"],
        &["nothing was touched", "machine info"],
    )?;
    try_insula(&["update", "nobody", "--cpus", "+1"])?.refused(1, &["no node 'nobody'"])
}

/// An update of a node without our module is refused with that reason.
fn has_no_module(node: &TestNode) -> Result<(), Finding> {
    let before = Resources::now()?;
    let answer = try_insula(&["update", "--cpus", "+1", &node.name])?;
    answer.refused(1, &["does not answer", "insula.ko", "nothing was touched"])?;
    assert_unchanged(&before)
}

/// Its listed chunks are its memory, each block where its kernel can use it.
fn assert_chunks(node: &TestNode, view: &Value) -> Result<(), Finding> {
    let shown = node.inspect()?;
    let chunks = shown["memory"].as_array().cloned().unwrap_or_default();
    let size = |chunk: &Value| chunk["size"].as_u64().unwrap_or_default();
    let sum: u64 = chunks.iter().map(size).sum();
    assert_equal(
        "bytes of all chunks",
        &Some(sum),
        &view["memory_bytes"].as_u64(),
    )?;
    let last = chunks.last().cloned().unwrap_or_default();
    let block = MORE_MIB << 20;
    let placed = size(&last) == block && last["start"].as_u64().is_some_and(|at| at % block == 0);
    Finding::unless(placed, || format!("added as {last}"))?;
    assert_equal(
        "cores that it may have",
        &shown["cpus_max"].as_u64(),
        &Some(2),
    )
}

/// Killed at any moment: the node runs on, and the next update repairs what is incomplete.
fn killed_updates(context: &Context, node: &TestNode) -> Result<(), Finding> {
    let seed = Rng::new().u64(..);
    println!("seed: {seed}");
    let mut rng = Rng::with_seed(seed);
    let before = Resources::now()?;
    let mut killed = 0;
    let kills = context.count(4, 200);
    for number in 0..kills {
        let words = if number % 2 == 0 { GROW } else { BEGIN };
        let mut update = command(&words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_millis(rng.u64(..LATEST_KILL_MS)));
        killed += u64::from(update.try_wait()?.is_none());
        update.kill()?;
        update.wait()?;
        node.assert_runs()?;
        // This completes, or undoes, an incomplete update.
        let brought_back = bring_back().and_then(|()| assert_unchanged(&before));
        brought_back.map_err(|finding| finding.when(&format!("after kill {number}")))?;
    }
    context.figure("update.kills", kills as f64, "1")?;
    context.figure("update.kills_before_the_end", killed as f64, "1")
}

/// A node that is filling its memory cannot give some back, and goes on.
fn bring_back() -> Result<(), Finding> {
    wait_for("the node to give back its added memory", || {
        let answer = try_insula(&BEGIN)?;
        if answer.status == Some(1) && answer.error_output.contains("nothing was changed") {
            return Ok(None);
        }
        answer.succeeded().map(Some)
    })
    .map(drop)
}

/// A node that is restarted has all that it had at its end.
pub(in crate::base::scenario) fn restart_keeps(
    _: &Context,
    node: &TestNode,
) -> Result<(), Finding> {
    insula(&GROW)?;
    let before = node.inspect()?;
    insula(&["restart", "--time", "0", NAME])?;
    let after = node.inspect()?;
    for same in ["cpus", "memory_bytes", "memory", "cpus_max"] {
        assert_equal(same, &after[same], &before[same])?;
    }
    report(node, 2, BEGINS_MIB + MORE_MIB).map(drop)
}

//! Stock kernels confined by the monitor: they work as others do, and what they do wrong ends only
//! them.
//!
//! A driver in the node's kernel does what a node must not, a write to the base's memory among it. A
//! trusted node beside keeps working, and the base's memory its content.

mod attack;
mod pausing;

use std::time::Duration;

use insula_driver::Driver;
use serde_json::Value;

use super::CONFINED;
use super::neighbour::Neighbour;
use crate::base::support::insula_command::{assert_equal, insula, try_insula, with_cleanup};
use crate::base::support::nodes::peer_node::Peer;
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::spare::DISK;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::{Emulator, SpareDevices};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "confined",
    proves: "a confined node works as others do, and what it does wrong ends it alone",
    machine: Shape {
        emulator: Emulator::Backports,
        spare_devices: SpareDevices::Plain,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(900),
    soak_limit: Some(Duration::from_secs(7200)),
    play,
};

/// The confined node.
const NAME: &str = "confined";

fn play(context: &Context) -> Result<(), Finding> {
    let versions = context.select(&["6.12"][..], &["6.1", "6.12"]);
    with_cleanup(|| {
        for version in versions {
            peer_image(context, version)?;
        }
        let before = Resources::now()?;
        for version in versions {
            works(context, version).map_err(|finding| finding.when(version))?;
            assert_unchanged(&before)?;
        }
        computes_without_exits(context)?;
        pausing::pauses(context)?;
        refusals()?;
        assert_unchanged(&before)?;
        let neighbour = Neighbour::start(context)?;
        attack::attacks(context, &neighbour)?;
        neighbour.remove()?;
        assert_unchanged(&before)
    })
}

/// Starts a confined node with cores by `cpus`.
fn start(context: &Context, version: &str, cpus: &str, task: &str) -> Result<TestNode, Finding> {
    let image = peer_image(context, version)?;
    let size = [&CONFINED[..], &["--cpus", cpus, "--memory", "256M"]].concat();
    TestNode::start(NAME, &["--image", &image], &size, task)
}

/// Its monitor as `insula inspect` shows it.
fn monitor(node: &TestNode) -> Result<Value, Finding> {
    Ok(node.inspect()?["monitor"].clone())
}

/// It starts both cores, answers by channels, is restarted in place, and powers off by its button.
fn works(context: &Context, version: &str) -> Result<(), Finding> {
    let node = start(context, version, "2", "peer")?;
    node.assert_ready(&context.release(version)?)?;
    let driver = Driver::open()?;
    Peer::new(&driver, NAME)?.assert_answers()?;
    let shown = monitor(&node)?;
    assert_equal("what ended it", &shown["ended"], &Value::Null)?;
    Finding::unless(shown["exits"]["ipi"].as_u64() > Some(0), || {
        format!("no interrupt between its cores was seen: {shown}")
    })?;
    println!("exits of its start: {}", shown["exits"]);
    let lines = insula(&["backtrace", NAME])?;
    Finding::unless(lines.contains("NMI backtrace for cpu 1"), || {
        format!("a core answers no NMI: {lines}")
    })?;
    insula(&["restart", NAME])?;
    node.assert_ready(&context.release(version)?)?;
    // For its power button it is resumed.
    insula(&["pause", NAME])?;
    insula(&["stop", "--time", "60", NAME])?;
    let view = node.inspect()?;
    assert_equal("reason", &view["reason"].as_str(), &Some("power-off"))?;
    node.remove()
}

/// While its core computes, with its timer's interrupts, the node's kernel does not leave for the
/// monitor.
fn computes_without_exits(context: &Context) -> Result<(), Finding> {
    let node = start(context, "6.12", "1", "compute")?;
    node.wait_until_ready()?;
    node.assert_works()?;
    let before = monitor(&node)?;
    for _ in 0..3 {
        node.assert_works()?;
    }
    let after = monitor(&node)?;
    assert_equal("exits", &after["exits"], &before["exits"])?;
    println!("exits until then: {}", after["exits"]);
    node.remove()
}

/// What cannot be confined is refused before anything is taken.
fn refusals() -> Result<(), Finding> {
    let run = |more: &[&str]| try_insula(&[&["run", "--isolation", "vmm"], more].concat());
    let device = ["--image", "peer-6.12", "--device", DISK];
    run(&device)?.refused(1, &["does not remap interrupts", "nothing was touched"])
}

/// Waits until the node was ended by its monitor. Returns what that tells.
pub(super) fn ended(node: &TestNode, reason: &str) -> Result<Value, Finding> {
    let view = node.wait_for_end()?;
    assert_equal("reason", &view["reason"].as_str(), &Some(reason))?;
    let ended = view["monitor"]["ended"].clone();
    if reason == "violation" {
        let told = |key: &str| ended[key].as_str().unwrap_or_default();
        let short = format!("{} {}", told("kind"), told("subject"));
        assert_equal("violation", &view["violation"].as_str(), &Some(&short))?;
    }
    Ok(ended)
}

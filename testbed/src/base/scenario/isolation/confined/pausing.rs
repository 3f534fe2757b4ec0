//! A paused node executes nothing, is no hang, and goes on where it was.

use std::fs;

use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::Handle;
use insula_node::monitor_state::paused_cores;

use super::{NAME, monitor};
use crate::base::scenario::isolation::CONFINED;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, try_insula, wait_for,
};
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::{Context, Finding};

/// Longer than a node may take no interrupts before it counts as hung.
const PAUSE_NS: u64 = 8_000_000_000;

pub(super) fn pauses(context: &Context) -> Result<(), Finding> {
    let image = peer_image(context, "6.12")?;
    let size = ["--cpus", "2", "--memory", "256M", "--on-hang", "restart"];
    let size = [&CONFINED[..], &size].concat();
    let node = TestNode::start(NAME, &["--image", &image], &size, "compute")?;
    node.wait_until_ready()?;
    node.assert_works()?;
    insula(&["pause", NAME])?;
    stands_still(&node)?;
    insula(&["resume", NAME])?;
    node.assert_works()?;
    node.assert_runs()?;
    try_insula(&["resume", NAME])?.refused(1, &["is not paused"])?;
    // A paused one can be killed, too.
    insula(&["pause", NAME])?;
    node.remove()?;
    refused_of_a_trusted_node(&image)?;
    refused_where_the_base_waits()
}

fn stands_still(node: &TestNode) -> Result<(), Finding> {
    let paused = node.inspect()?;
    assert_equal("state", &paused["state"].as_str(), &Some("paused"))?;
    let (rounds, exits) = (node.rounds()?, monitor(node)?["exits"].clone());
    registers_are_known()?;
    needs_execution_is_refused()?;
    wait_for("a pause longer than a hang may be", || {
        let passed =
            node.inspect()?["ran_ns"].as_u64() >= paused["ran_ns"].as_u64().map(|ns| ns + PAUSE_NS);
        Ok(passed.then_some(()))
    })?;
    assert_equal("rounds", &node.rounds()?, &rounds)?;
    let after = node.inspect()?;
    assert_equal("exits", &after["monitor"]["exits"], &exits)?;
    assert_equal("unresponsive", &after["unresponsive"], &false.into())?;
    assert_equal("starts", &after["starts"], &paused["starts"])
}

/// A dump is complete, with the registers of both cores.
fn registers_are_known() -> Result<(), Finding> {
    let node = Driver::open()?.open_node(&NAME.parse::<Name>()?.to_abi())?;
    let cores = paused_cores(&Handle::of(node)?)?;
    assert_equal("paused cores", &cores.len(), &2)?;
    for core in cores {
        let [.., rip, cs, rflags, rsp, _] = core.registers;
        Finding::unless(
            rip != 0 && cs & !3 != 0 && rflags & 2 != 0 && rsp != 0,
            || format!("registers that no core can have: {core:x?}"),
        )?;
    }
    let path = "/tmp/paused.vmcore";
    let dumped = insula_json(&["dump", "--json", "--output", path, NAME])?;
    fs::remove_file(path)?;
    assert_equal(
        "what the dump lacks",
        &dumped["warnings"],
        &serde_json::json!([]),
    )
}

fn needs_execution_is_refused() -> Result<(), Finding> {
    let refused = |arguments: &[&str], status| {
        try_insula(arguments)?.refused(status, &["is paused", "insula resume confined"])
    };
    refused(&["backtrace", NAME], 1)?;
    refused(&["update", NAME, "--memory", "+128M"], 1)?;
    refused(&["pause", NAME], 1)?;
    refused(&["exec", NAME, "--", "true"], 125)
}

/// Nothing could hold the cores of a node without a monitor.
fn refused_of_a_trusted_node(image: &str) -> Result<(), Finding> {
    let size = ["--cpus", "1", "--memory", "256M"];
    let node = TestNode::start("trusted", &["--image", image], &size, "idle")?;
    try_insula(&["pause", "trusted"])?.refused(1, &["only nodes with --isolation vmm"])?;
    node.remove()
}

/// The base's memory management waits for the kernel of a node that maps pages of the base.
fn refused_where_the_base_waits() -> Result<(), Finding> {
    let size = ["--cpus", "1", "--memory", "128M", "--name", NAME];
    insula(&[&["run", "--image", "lwk"], &CONFINED[..], &size].concat())?;
    try_insula(&["pause", NAME])?.refused(1, &["it has memory of the base"])?;
    insula(&["rm", "--force", NAME]).map(drop)
}

//! A confined node gets more cores and memory while it runs, and gives them back: what it has given back
//! it cannot reach any more, whatever its kernel does.

use std::time::Duration;

use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::Handle;
use insula_node::monitor_state::paused_cores;

use super::CONFINED;
use crate::base::scenario::resources::update;
use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, numbers, text, with_cleanup,
};
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "confined_update",
    proves: "a confined node gets a core and memory, and reaches none that it has given back",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(900),
    soak_limit: None,
    play,
};

const NAME: &str = "confined";

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        peer_image(context, "6.12")?;
        let before = Resources::now()?;
        late_access(context)?;
        assert_unchanged(&before)?;
        update::with_node(context, "6.12", &CONFINED, pauses_and_restarts)?;
        assert_unchanged(&before)
    })
}

/// A core that the node got later is paused, too; and its kernel, which has to take it offline, goes on
/// afterwards.
fn pauses_and_restarts(context: &Context, node: &TestNode) -> Result<(), Finding> {
    insula(&["update", "--cpus", "2", &node.name])?;
    insula(&["pause", &node.name])?;
    let opened = Driver::open()?.open_node(&node.name.parse::<Name>()?.to_abi())?;
    let mut paused: Vec<_> = paused_cores(&Handle::of(opened)?)?
        .iter()
        .map(|core| core.apic_id)
        .collect();
    paused.sort_unstable();
    let mut own: Vec<u32> = numbers(&node.inspect()?["apic_ids"]);
    own.sort_unstable();
    assert_equal("paused cores", &paused, &own)?;
    insula(&["resume", &node.name])?;
    insula(&["update", "--cpus", "1", &node.name])?;
    update::restart_keeps(context, node)
}

/// A driver goes on writing to memory that its kernel has given back. Its core may remember where that
/// is; the write that ends it is one to that memory all the same.
fn late_access(context: &Context) -> Result<(), Finding> {
    let image = peer_image(context, "6.12")?;
    let size = [
        &CONFINED[..],
        &["--cpus", "2", "--memory", "192M", "--no-reboot"],
    ]
    .concat();
    let task = "late attack=attack:late";
    let node = TestNode::start(NAME, &["--image", &image], &size, task)?;
    node.wait_for_line("attacks")?;
    let grown = insula_json(&["update", "--memory", "+128M", "--json", NAME])?;
    let shown = node.inspect()?;
    let added = shown["memory"]
        .as_array()
        .and_then(|chunks| chunks.last())
        .cloned();
    let added = added.ok_or_else(|| Finding::new(format!("no memory: {grown}")))?;
    insula(&["update", "--memory", "-128M", NAME])?;
    let ended = super::confined::ended(&node, "violation")?;
    assert_equal("what ended it", &text(&ended["kind"]).as_str(), &"memory")?;
    let start = added["start"].as_u64().unwrap_or_default();
    assert_equal("subject", &text(&ended["subject"]), &format!("{start:#x}"))?;
    node.remove()
}

//! A confined node gets more cores and memory while it runs, and gives them back: what it has given back
//! it cannot reach any more, whatever its kernel does.

use std::thread;
use std::time::{Duration, Instant};

use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::Handle;
use insula_node::monitor_state::paused_cores;

use super::CONFINED;
use super::neighbour::Canary;
use crate::base::scenario::resources::update;
use crate::base::support::insula_command::{
    TIMEOUT, assert_equal, insula, insula_json, numbers, text, with_cleanup,
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

/// A driver goes on writing to memory that its kernel has given back, by a translation that its core
/// remembers. The base uses that memory again at once: nobody has written to it when the node has ended, by
/// a write to that memory.
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
    let start = added["start"].as_u64().unwrap_or_default();
    let driver = Driver::open()?;
    let canary = thread::scope(|scope| {
        let update = scope.spawn(|| insula(&["update", "--memory", "-128M", NAME]).map(drop));
        let canary = use_again(&driver, start)?;
        let updated = update.join();
        updated.unwrap_or_else(|_| Err(Finding::new("a thread panicked")))?;
        Ok::<_, Finding>(canary)
    })?;
    let ended = super::confined::ended(&node, "violation")?;
    assert_equal("what ended it", &text(&ended["kind"]).as_str(), &"memory")?;
    assert_equal("subject", &text(&ended["subject"]), &format!("{start:#x}"))?;
    assert_equal("first byte written late", &canary.changed()?, &None)?;
    node.remove()
}

/// Takes memory for the base as soon as it is free: before a core leaves for its monitor by itself, which makes it
/// forget what it remembered of that memory.
fn use_again(driver: &Driver, start: u64) -> Result<Canary, Finding> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Canary::place_at(driver, start) {
            Ok(canary) => return Ok(canary),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => thread::yield_now(),
        }
    }
}

//! The control of the attacks on confined nodes: the same attacks by nodes that are not confined do harm.
//! Otherwise it would prove nothing that they do none there.
//!
//! Two attacks end the whole machine, each the machine of its own scenario: success is stored before.

use std::time::Duration;

use super::attacker;
use super::neighbour::Neighbour;
use crate::base::scenario::base_end::{outlived, store_success};
use crate::base::support::insula_command::wait_for;
use crate::base::support::nodes::test_node::{TestNode, log};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "attacked",
    proves: "attacks that a confined node survives no harm of do harm without a monitor",
    limit: Duration::from_secs(400),
    play,
    ..FAULT
};

pub(crate) const FAULT: Scenario = Scenario {
    name: "attacked_by_a_fault",
    proves: "a triple fault of a node that is not confined ends the machine",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(300),
    soak_limit: None,
    play: fault,
};

fn play(context: &Context) -> Result<(), Finding> {
    let neighbour = Neighbour::start(context)?;
    writes_memory(context, &neighbour)?;
    // Confined, these end the node: reading the base's memory, writing a register of virtualization.
    let canary = neighbour.canary.address;
    survives(context, &format!("attack:read,subject:{canary:#x}"))?;
    survives(context, "attack:msr,subject:0xc0010117,value:0x1000")?;
    interrupts(context, &neighbour.node)?;
    store_success(context)?;
    // The machine's power-off: PM1 control, sleep enable.
    attacker::start(context, "direct", "attack:port,subject:0x604,value:0x2000")?;
    outlived("a node has written to the power-off port")
}

fn fault(context: &Context) -> Result<(), Finding> {
    store_success(context)?;
    attacker::start(context, "direct", "attack:fault")?;
    outlived("a triple fault of a node")
}

/// The base's memory is changed.
fn writes_memory(context: &Context, neighbour: &Neighbour) -> Result<(), Finding> {
    let canary = neighbour.canary.address;
    let attack = format!("attack:memory,subject:{canary:#x},value:0xbad");
    let node = attacker::start(context, "direct", &attack)?;
    wait_for("the base's memory to be changed", || {
        Ok(neighbour.canary.changed()?.map(drop))
    })?;
    node.remove()
}

/// Nothing ends the node.
fn survives(context: &Context, attack: &str) -> Result<(), Finding> {
    let node = attacker::start(context, "direct", attack)?;
    node.wait_for_line("survived")?;
    node.remove()
}

/// Another node's core takes an NMI that nobody of it sent, and is reset.
fn interrupts(context: &Context, neighbour: &TestNode) -> Result<(), Finding> {
    let to = neighbour.apic_ids[0];
    survives(context, &format!("attack:ipi,subject:{to},value:0x4400"))?;
    wait_for("the neighbour to wonder about an NMI", || {
        Ok(log("neighbour")?
            .contains("NMI received for unknown reason")
            .then_some(()))
    })?;
    neighbour.assert_works()?;
    survives(context, &format!("attack:ipi,subject:{to},value:0x4500"))?;
    wait_for("the neighbour to answer no more", || {
        let view = neighbour.inspect()?;
        let is_lost = view["unresponsive"] == true || view["state"] == "stopped";
        Ok(is_lost.then_some(()))
    })
}

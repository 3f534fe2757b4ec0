//! PCI functions of confined nodes, on a machine whose IOMMU remaps interrupts.

use std::fs;
use std::time::Duration;

use super::neighbour::Neighbour;
use super::{CONFINED, attacker, confined};
use crate::base::scenario::device::devices_iommu;
use crate::base::support::insula_command::{assert_equal, insula, text, wait_for, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::spare::{self, DISK, NETWORK, NetworkDriver};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::{Emulator, SpareDevices};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "confined_devices",
    proves: "a confined node works with PCI functions, and by them reaches nothing else",
    machine: Shape {
        emulator: Emulator::Backports,
        spare_devices: SpareDevices::BehindX2apic,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(1200),
    soak_limit: Some(Duration::from_secs(1800)),
    play,
};

const NAME: &str = "confined";
/// What core 0 of the base logs if it gets the interrupt of that message, whose vector nobody uses
/// (`common_interrupt` of arch/x86/kernel/irq.c).
const STRAY_INTERRUPT: &str = "No irq handler for 0.232";
/// The address to which a message to core 0, which is the base's, goes.
const MESSAGE_TO_BASE: u32 = 0xfee0_0000;

fn play(context: &Context) -> Result<(), Finding> {
    let versions = context.select(&["6.12"][..], &["6.12", "6.1"]);
    let network = NetworkDriver::load()?;
    let played = with_cleanup(|| {
        for version in versions {
            peer_image(context, version)?;
        }
        spare::assert_base_has_both()?;
        let before = Resources::now()?;
        for version in versions {
            works(context, version, &network).map_err(|finding| finding.when(version))?;
            assert_unchanged(&before)?;
        }
        both_stay_or_return(context)?;
        assert_unchanged(&before)?;
        registers_of_others_are_not_reached(context)?;
        assert_unchanged(&before)?;
        nothing_else_is_reached(context)?;
        assert_unchanged(&before)
    });
    played.and(network.unload())
}

fn start(context: &Context, version: &str, size: &[&str], task: &str) -> Result<TestNode, Finding> {
    let image = peer_image(context, version)?;
    let size = [&CONFINED[..], &["--memory", "256M"], size].concat();
    TestNode::start(NAME, &["--image", &image], &size, task)
}

/// Disk and network work, also with memory that is added and after a restart in place; then in the base again,
/// with the node's data.
fn works(context: &Context, version: &str, network: &NetworkDriver) -> Result<(), Finding> {
    let from_base = spare::fill_disk()?;
    let both = ["--cpus", "2", "--device", DISK, "--device", NETWORK];
    let node = start(context, version, &both, "devices")?;
    let first = uses_both(&node, &from_base)?;
    devices_iommu::added_memory_is_reached(&node)?;
    insula(&["restart", NAME])?;
    node.wait_for_line("disk rounds=")?;
    let written = uses_both(&node, &from_base)?;
    Finding::unless(written != first, || {
        "the node has not been restarted".into()
    })?;
    println!("exits: {}", node.inspect()?["monitor"]["exits"]);
    insula(&["kill", NAME])?;
    spare::assert_base_has_both()?;
    assert_equal("the disk", &spare::disk_sums()?, &(from_base, written))?;
    assert_equal("the base's file", &network.fetch()?, &spare::served_sum()?)?;
    node.remove()
}

/// A node that resets itself keeps both functions; one that powers off has none, though it is still there.
fn both_stay_or_return(context: &Context) -> Result<(), Finding> {
    let both = ["--device", DISK, "--device", NETWORK];
    let node = start(context, "6.12", &both, "reboot")?;
    wait_for("the node to be started again", || {
        Ok((node.inspect()?["starts"].as_u64() >= Some(3)).then_some(()))
    })?;
    assert_equal(
        "functions of a node that resets itself",
        &attached(&node)?,
        &2,
    )?;
    node.remove()?;
    spare::assert_base_has_both()?;
    let node = start(context, "6.12", &both, "poweroff")?;
    node.wait_for_end()?;
    assert_equal("functions of a node that is off", &attached(&node)?, &0)?;
    spare::assert_base_has_both()?;
    node.remove()
}

/// Number of the functions that it has.
fn attached(node: &TestNode) -> Result<usize, Finding> {
    let devices = node.inspect()?["devices"].clone();
    let devices = devices.as_array().into_iter().flatten();
    Ok(devices.filter(|device| device["attached"] == true).count())
}

/// The node has fetched the file, read the base's data and its own. Returns the checksum of that.
fn uses_both(node: &TestNode, from_base: &str) -> Result<String, Finding> {
    node.wait_for_line("disk rounds=")?;
    let fetched = spare::fetch_report(node)?;
    assert_equal("the node's file", &fetched, &spare::served_sum()?)?;
    let disk = spare::disk_report(node)?;
    assert_equal("data of the base", &disk.found.as_str(), &from_base)?;
    assert_equal("data of the node", &disk.read, &disk.written)?;
    Finding::unless(disk.interrupts > 0, || {
        "the disk has not interrupted the node".into()
    })?;
    Ok(disk.written)
}

/// A node that has the disk accesses the network card's registers, which nobody gave it.
fn registers_of_others_are_not_reached(context: &Context) -> Result<(), Finding> {
    let resource = fs::read_to_string(format!("/sys/bus/pci/devices/{NETWORK}/resource"))?;
    let starts = resource.lines().filter_map(|line| line.split(' ').next());
    let mut in_memory =
        starts.filter(|start| start.len() > 2 && !start.ends_with("0000000000000000"));
    let address = in_memory.next_back().unwrap_or_default();
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
    let attack = format!("attack:read,subject:{address:#x}");
    let node = attacker::start_with(context, &["--isolation", "vmm", "--device", DISK], &attack)?;
    let ended = confined::ended(&node, "violation")?;
    assert_equal("what ended it", &text(&ended["kind"]).as_str(), &"memory")?;
    assert_equal(
        "subject",
        &text(&ended["subject"]),
        &format!("{address:#x}"),
    )?;
    node.remove()?;
    spare::assert_base_has_both()
}

/// The disk's controller is told to write to the base's memory, and to send its messages to a core of the base.
fn nothing_else_is_reached(context: &Context) -> Result<(), Finding> {
    let neighbour = Neighbour::start(context)?;
    let canary = neighbour.canary.address;
    let task = format!("stray stray={canary:#x} message={MESSAGE_TO_BASE:#x}");
    let node = start(context, "6.12", &["--device", DISK], &task)?;
    let line = node.wait_for_line("stray inside=")?;
    // The same command on the node's own memory works: so its failure proves something.
    let arrived = line.contains("inside=0 wrote=0x") && !line.contains("wrote=0x00000000");
    Finding::unless(arrived, || format!("nothing arrived in the node: {line}"))?;
    devices_iommu::wait_for_fault(canary)?;
    neighbour.assert_unharmed()?;
    let log = spare::shell("dmesg")?;
    Finding::unless(!log.contains(STRAY_INTERRUPT), || {
        "a core of the base was interrupted".into()
    })?;
    node.remove()?;
    spare::assert_base_has_both()?;
    neighbour.remove()
}

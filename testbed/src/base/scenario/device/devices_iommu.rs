//! Devices of nodes behind an IOMMU.

use std::fs;
use std::time::Duration;

use insula_driver::Driver;
use insula_driver::name::Name;

use super::unplugged;
use crate::base::support::insula_command::{assert_equal, insula, wait_for, with_cleanup};
use crate::base::support::nodes::hang::hang;
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::support::spare::{self, DISK, NETWORK, NetworkDriver};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::SpareDevices;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "devices_iommu",
    proves: "with an IOMMU a node's devices work, also with memory added later, cannot reach what is not the node's, and can be unplugged",
    machine: Shape {
        spare_devices: SpareDevices::BehindIommu,
        // Use after free finds zeros, and is noticed.
        append: "init_on_free=1",
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

/// Memory that is added to a running node, and removed again.
const MORE: &str = "+128M";
const LESS: &str = "-128M";
/// Kernel of the node that has devices.
const OWNER: &str = "6.1";
const WITH_BOTH: [&str; 6] = ["--memory", "256M", "--device", DISK, "--device", NETWORK];

fn play(context: &Context) -> Result<(), Finding> {
    let units = fs::read_dir("/sys/class/iommu")?.count();
    Finding::unless(units > 0, || "the base uses no IOMMU".into())?;
    with_cleanup(unplugged::while_memory_is_mapped)?;
    with_cleanup(unplugged::while_memory_comes_and_goes)?;
    let network = NetworkDriver::load()?;
    let played = with_cleanup(|| {
        devices_work(context, &network)?;
        nothing_else_is_reached(context)
    });
    played.and(network.unload())
}

/// Starts a node that can be given more memory.
fn start(
    context: &Context,
    version: &str,
    name: &str,
    size: &[&str],
    task: &str,
) -> Result<TestNode, Finding> {
    let image = peer_image(context, version)?;
    let source = ["--image", &image];
    TestNode::start(name, &source, size, task)
}

fn devices_work(context: &Context, network: &NetworkDriver) -> Result<(), Finding> {
    let from_base = spare::fill_disk()?;
    let size = [&WITH_BOTH[..], &["--on-hang", "restart"]].concat();
    let node = start(context, OWNER, "owner", &size, "devices")?;
    let devices = node.inspect()?["devices"].clone();
    let behind_iommu = devices
        .as_array()
        .into_iter()
        .flatten()
        .filter(|device| device["iommu"] == true);
    assert_equal("devices behind an IOMMU", &behind_iommu.count(), &2)?;
    assert_equal(
        "the file that the node fetched",
        &spare::fetch_report(&node)?,
        &spare::served_sum()?,
    )?;
    let disk = spare::disk_report(&node)?;
    assert_equal(
        "data of the base, read by the node",
        &disk.found,
        &from_base,
    )?;
    assert_equal("data of the node, read back", &disk.read, &disk.written)?;
    node.wait_for_line("disk rounds=")?;
    added_memory_is_reached(&node)?;
    let written = restarted_with_added_memory(context, &node, &disk.written)?;
    insula(&["kill", &node.name])?;
    spare::assert_base_has_both()?;
    assert_equal("the disk", &spare::disk_sums()?, &(from_base, written))?;
    assert_equal(
        "the file that the base fetched",
        &network.fetch()?,
        &spare::served_sum()?,
    )?;
    node.remove()
}

/// The disk works on with more memory and with less. Buffers of programs come from added memory
/// first: a kernel puts movable pages there.
pub(crate) fn added_memory_is_reached(node: &TestNode) -> Result<(), Finding> {
    for change in [MORE, LESS] {
        memory_changes(node, change)?;
    }
    let faults = spare::shell("dmesg | grep -c 'DMAR.*fault addr' || true")?;
    assert_equal("the base's log of faults", &faults.as_str(), &"0")
}

/// A node with added memory and devices hangs, and its supervisor, which has few privileges, restarts
/// it: it has both again. Returns the checksum of what it has written to its disk; `before`, it was
/// another.
fn restarted_with_added_memory(
    context: &Context,
    node: &TestNode,
    before: &str,
) -> Result<String, Finding> {
    insula(&["update", &node.name, "--memory", MORE])?;
    let size = node.inspect()?["memory_bytes"].clone();
    hang(&node.name, &fs::read(context.kernel(OWNER)?)?)?;
    let disk = wait_for("the node to use its disk again", || {
        let disk = spare::disk_report(node)?;
        Ok((disk.written != before).then_some(disk))
    })?;
    assert_equal("data of the node, read back", &disk.read, &disk.written)?;
    node.wait_for_line("disk rounds=")?;
    assert_equal("its memory", &node.inspect()?["memory_bytes"], &size)?;
    // What had been added is now memory that it starts with, which it cannot give up.
    added_memory_is_reached(node)?;
    Ok(disk.written)
}

/// Changes its memory; it continues to use its disk.
fn memory_changes(node: &TestNode, change: &str) -> Result<(), Finding> {
    insula(&["update", &node.name, "--memory", change])?;
    let before = disk_rounds(node)?;
    wait_for("the node to continue to use its disk", || {
        Ok((disk_rounds(node)? > before + 1).then_some(()))
    })?;
    let differs = node.last_line("disk differs")?;
    assert_equal("errors of the disk", &differs, &None)
}

/// Rounds of writing and reading that the node has logged.
fn disk_rounds(node: &TestNode) -> Result<u64, Finding> {
    let line = node.last_line("disk rounds=")?.unwrap_or_default();
    Ok(line.rsplit('=').next().unwrap_or_default().parse()?)
}

/// A node's disk writes to memory of another node: the IOMMU blocks that, and the memory is
/// unchanged. The same holds for memory that was the node's own for a while.
fn nothing_else_is_reached(context: &Context) -> Result<(), Finding> {
    let other = start(context, "6.1", "other", &["--memory", "128M"], "idle")?;
    other.wait_until_ready()?;
    insula(&["kill", &other.name])?;
    let address = memory_of(&other)?;
    let before = page(&other, address)?;
    let task = format!("stray stray={address:#x}");
    let size = ["--memory", "256M", "--device", DISK];
    let node = start(context, "6.12", "stray", &size, &task)?;
    let line = node.wait_for_line("stray inside=")?;
    let words: Vec<_> = line
        .split(' ')
        .filter_map(|word| word.split_once('='))
        .collect();
    let value = |name: &str| {
        words
            .iter()
            .find(|(word, _)| *word == name)
            .map_or("", |(_, value)| *value)
    };
    // The same command on the node's own memory works: so its failure proves something.
    assert_equal("status of the write into the node", &value("inside"), &"0")?;
    let arrived = !matches!(value("wrote"), "" | "0x00000000");
    Finding::unless(arrived, || format!("nothing arrived in the node: {line}"))?;
    // The emulated controller reports success even for a blocked write.
    let untouched = page(&other, address)? == before;
    Finding::unless(untouched, || {
        format!("the other node's memory at {address:#x} was overwritten")
    })?;
    wait_for_fault(address)?;
    insula(&["update", &node.name, "--memory", MORE])?;
    let line = node.wait_for_line("stray added=")?;
    insula(&["update", &node.name, "--memory", LESS])?;
    node.wait_for_line("stray removed=")?;
    let added = line.rsplit('=').next().unwrap_or_default();
    wait_for_fault(u64::from_str_radix(added, 16)?)?;
    node.remove()?;
    other.remove()?;
    spare::assert_base_has_both()
}

/// Waits until the IOMMU has reported a write of the device to this address.
pub(crate) fn wait_for_fault(address: u64) -> Result<(), Finding> {
    let fault = format!("fault addr {address:#x}");
    wait_for("the base to log the fault", || {
        let log = spare::shell("dmesg")?;
        let logged = log
            .lines()
            .any(|line| line.contains("DMAR") && line.contains(&fault));
        Ok(logged.then_some(()))
    })
}

/// Address of the last chunk of a node's memory.
fn memory_of(node: &TestNode) -> Result<u64, Finding> {
    let chunks = node.inspect()?["memory"].clone();
    let last = chunks
        .as_array()
        .and_then(|chunks| chunks.last()?["start"].as_u64());
    last.ok_or_else(|| Finding::new(format!("{} has no memory: {chunks}", node.name)))
}

/// Content of a page of a node's memory.
fn page(node: &TestNode, address: u64) -> Result<Vec<u8>, Finding> {
    let name: Name = node.name.parse()?;
    let memory = Driver::open()?.open_node(&name.to_abi())?.memory()?;
    let mapping = memory.map()?;
    let mut bytes = vec![0; 4096];
    mapping.read(mapping.offset_of(address, 4096)?, &mut bytes)?;
    Ok(bytes)
}

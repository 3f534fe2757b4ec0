//! PCI functions in nodes and back.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::device_refusals::refusals;
use super::holdings::{Holdings, assert_unchanged};
use super::insula_command::{
    Answer, ask, assert_equal, attended, command, insula, insula_json, names, wait_for,
};
use super::load::Load;
use super::spare::{self, DISK, NETWORK, NetworkDriver};
use super::test_node::{TestNode, add_unpacked_image};
use super::{Context, Finding, Module, Scenario, Shape};
use crate::kernels::Flavour;
use crate::machine::SpareDevices;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "devices",
    proves: "NVMe and virtio-net work in a node, bother nobody, and are the base's again however the node ends; what cannot be had is refused",
    machine: Shape {
        cpus: 5,
        spare_devices: SpareDevices::Plain,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(3500)),
    play,
};

/// Kills may come later than the command usually ends, by this factor: it is not always as fast.
const SPREAD: f64 = 1.2;
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];
const WITH_BOTH: [&str; 8] = [
    "--cpus", "2", "--memory", "256M", "--device", DISK, "--device", NETWORK,
];

fn play(context: &Context) -> Result<(), Finding> {
    let network = NetworkDriver::load()?;
    let played = attended(|| {
        add_unpacked_image(context, "old", "6.1")?;
        add_unpacked_image(context, "new", "6.12")?;
        spare::assert_the_bases()?;
        let before = Holdings::now()?;
        refusals(&network, &before)?;
        force_takes_it(&before)?;
        work_and_return(context, &network)?;
        other_endings(&before)?;
        kills(context, &before)
    });
    played.and(network.unload())
}

/// What the base needs is a node's all the same if its user says so, and comes back as anything else.
fn force_takes_it(before: &Holdings) -> Result<(), Finding> {
    let words = ["--memory", "128M", "--device", NETWORK, "--force-device"];
    let node = TestNode::start("forced", &["--image", "old"], &words, "idle")?;
    assert_equal("whether the node has the device", &is_held(&node)?, &true)?;
    assert_equal(
        "its driver",
        &spare::driver(NETWORK).as_deref(),
        &Some("insula"),
    )?;
    node.remove()?;
    spare::assert_the_bases()?;
    assert_unchanged(before)
}

/// Both devices at work in a node, beside a node and a base at work; then in the base again, with what the node wrote.
fn work_and_return(context: &Context, network: &NetworkDriver) -> Result<(), Finding> {
    let from_base = spare::fill_disk()?;
    let load = Load::start()?;
    let neighbour = TestNode::start("neighbour", &["--image", "old"], &SIZE, "compute")?;
    let node = TestNode::start("owner", &["--image", "new"], &WITH_BOTH, "devices")?;
    node.assert_ready(&context.release("6.12")?)?;
    assert_owned(&node)?;
    taken_is_refused()?;

    let first = devices_work(&node, &from_base, None)?;
    insula(&["restart", &node.name])?;
    let written = devices_work(&node, &from_base, Some(&first))?;

    node.wait_for_line("disk rounds=")?;
    neighbour.assert_works()?;
    load.assert_busy()?;
    insula(&["kill", &node.name])?;
    spare::assert_the_bases()?;
    let (base, nodes) = spare::disk_sums()?;
    assert_equal("the base's part of the disk", &base, &from_base)?;
    assert_equal("the node's part of the disk", &nodes, &written)?;
    assert_equal(
        "the file that the base fetched",
        &network.fetch()?,
        &spare::served_sum()?,
    )?;
    neighbour.assert_works()?;
    drop(load);
    node.remove()?;
    neighbour.remove()
}

/// The node has fetched the file, found on the disk what the base wrote, and read back what it wrote itself: another
/// thing than `before` a restart. Answers the checksum of that.
fn devices_work(node: &TestNode, from_base: &str, before: Option<&str>) -> Result<String, Finding> {
    let disk = wait_for("the node to use its disk", || {
        let disk = spare::nodes_disk(node)?;
        Ok((before != Some(disk.written.as_str())).then_some(disk))
    })?;
    let fetched = spare::nodes_fetch(node)?;
    assert_equal(
        "the file that the node fetched",
        &fetched,
        &spare::served_sum()?,
    )?;
    assert_equal(
        "what the node found on the disk",
        &disk.found.as_str(),
        &from_base,
    )?;
    assert_equal("what the node read back", &disk.read, &disk.written)?;
    Finding::unless(disk.interrupts > 0, || {
        "the disk has not interrupted the node".into()
    })?;
    Ok(disk.written)
}

fn assert_owned(node: &TestNode) -> Result<(), Finding> {
    let machine = insula_json(&["machine", "info", "--json"])?;
    let devices = machine["devices"].as_array().into_iter().flatten();
    let owned: Vec<_> = devices
        .filter(|device| device["node"] == node.name.as_str())
        .collect();
    let addresses: Vec<_> = owned
        .iter()
        .filter_map(|device| device["address"].as_str())
        .collect();
    assert_equal("devices of the node", &addresses, &vec![DISK, NETWORK])?;
    let held = &node.inspect()?["devices"];
    let all = held
        .as_array()
        .into_iter()
        .flatten()
        .all(|device| device["held"] == true && device["confined"] == false);
    Finding::unless(all, || format!("the node's devices are {held}"))
}

/// What is a node's cannot be another's.
fn taken_is_refused() -> Result<(), Finding> {
    let words = [
        "run", "--image", "old", "--memory", "256M", "--device", DISK,
    ];
    ask(&words)?.refused(
        1,
        &[
            "belongs to a node already",
            "nothing was touched",
            "machine info",
        ],
    )
}

/// A node that switches itself off, resets or crashes loses its device as well; one that reboots in place keeps it.
fn other_endings(before: &Holdings) -> Result<(), Finding> {
    let size = ["--memory", "256M", "--device", DISK];
    for task in ["poweroff", "reboot", "panic"] {
        let words = [&size[..], &["--no-reboot"]].concat();
        let node = TestNode::start("ending", &["--image", "old"], &words, task)?;
        node.wait_for_end()?;
        assert_equal(
            "whether an ended node has its device",
            &is_held(&node)?,
            &false,
        )?;
        spare::assert_the_bases()?;
        node.remove()?;
    }
    let node = TestNode::start("rebooting", &["--image", "old"], &size, "reboot")?;
    wait_for("the node to be started again", || {
        Ok((node.inspect()?["starts"].as_u64() >= Some(2)).then_some(()))
    })?;
    assert_equal(
        "whether a node that reboots has its device",
        &is_held(&node)?,
        &true,
    )?;
    node.remove()?;
    spare::assert_the_bases()?;
    assert_unchanged(before)
}

fn is_held(node: &TestNode) -> Result<bool, Finding> {
    Ok(node.inspect()?["devices"][0]["held"] == true)
}

/// However the command is killed, a device is a running node's or the base's.
fn kills(context: &Context, before: &Holdings) -> Result<(), Finding> {
    let words = [
        "run", "--image", "old", "--name", "victim", "--memory", "128M", "--device", DISK,
        "--device", NETWORK,
    ];
    let began = Instant::now();
    insula(&words)?;
    let usual = began.elapsed();
    tidy(before)?;
    let mut rng = Rng::new();
    let (mut struck, count) = (0, context.count(5, 100));
    for _ in 0..count {
        let delay = usual.mul_f64(rng.f64() * SPREAD);
        let mut child = command(&words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        std::thread::sleep(delay);
        child.kill()?;
        let answer = Answer::new(&words, &child.wait_with_output()?);
        struck += u64::from(answer.status.is_none());
        tidy(before).map_err(|finding| finding.when(&format!("after a kill at {delay:?}")))?;
    }
    context.figure("kills", count as f64, "1")?;
    context.figure("kills.before_the_end", struck as f64, "1")
}

/// Removes the node if there is one; then the devices are the base's.
fn tidy(before: &Holdings) -> Result<(), Finding> {
    for name in names(&["ps", "--all", "--json"])? {
        insula(&["rm", "--force", &name])?;
    }
    spare::assert_the_bases()?;
    assert_unchanged(before)
}

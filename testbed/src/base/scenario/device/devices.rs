//! PCI functions given to nodes and returned.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::refusals::refusals;
use crate::base::support::insula_command::{
    Answer, assert_equal, command, insula, insula_json, names, try_insula, wait_for, with_cleanup,
};
use crate::base::support::load::Load;
use crate::base::support::nodes::hang::hang;
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::spare::{self, DISK, NETWORK, NetworkDriver};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::SpareDevices;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "devices",
    proves: "NVMe and virtio-net work in a node, disturb nobody, and return to the base however the node ends; impossible requests are refused",
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

/// Kills are drawn up to the command's usual duration times this factor: its speed varies.
const SPREAD: f64 = 1.2;
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];
/// File that describes a node.
const PROJECT: &str = "/tmp/locked/insula.toml";
const WITH_BOTH: [&str; 8] = [
    "--cpus", "2", "--memory", "256M", "--device", DISK, "--device", NETWORK,
];

fn play(context: &Context) -> Result<(), Finding> {
    let network = NetworkDriver::load()?;
    let played = with_cleanup(|| {
        add_unpacked_image(context, "old", "6.1")?;
        add_unpacked_image(context, "new", "6.12")?;
        spare::assert_base_has_both()?;
        let before = Resources::now()?;
        refusals(&network, &before)?;
        force_takes_it(&before)?;
        work_and_return(context, &network)?;
        other_endings(&before)?;
        kills(context, &before)?;
        locked_down(context, &before)
    });
    played.and(network.unload())
}

/// A function that the base needs is given to a node if its user forces it, and returned as any
/// other.
fn force_takes_it(before: &Resources) -> Result<(), Finding> {
    let words = ["--memory", "128M", "--device", NETWORK, "--force-device"];
    let node = TestNode::start("forced", &["--image", "old"], &words, "idle")?;
    assert_equal(
        "whether the node has the device",
        &is_attached(&node)?,
        &true,
    )?;
    assert_equal(
        "its driver",
        &spare::driver(NETWORK).as_deref(),
        &Some("insula"),
    )?;
    node.remove()?;
    spare::assert_base_has_both()?;
    assert_unchanged(before)
}

/// Both devices work in a node, beside a node and a base under load; then in the base again, with
/// the node's data.
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
    spare::assert_base_has_both()?;
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

/// The node has fetched the file, found the base's data on the disk, and read back its own: other
/// data than `before` a restart. Returns the checksum of that.
fn devices_work(node: &TestNode, from_base: &str, before: Option<&str>) -> Result<String, Finding> {
    let disk = wait_for("the node to use its disk", || {
        let disk = spare::disk_report(node)?;
        Ok((before != Some(disk.written.as_str())).then_some(disk))
    })?;
    let fetched = spare::fetch_report(node)?;
    assert_equal(
        "the file that the node fetched",
        &fetched,
        &spare::served_sum()?,
    )?;
    assert_equal(
        "data of the base, read by the node",
        &disk.found.as_str(),
        &from_base,
    )?;
    assert_equal("data of the node, read back", &disk.read, &disk.written)?;
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
    let attached = &node.inspect()?["devices"];
    let all = attached
        .as_array()
        .into_iter()
        .flatten()
        .all(|device| device["attached"] == true && device["iommu"] == false);
    Finding::unless(all, || format!("the node's devices are {attached}"))
}

/// A function of one node cannot be given to another.
fn taken_is_refused() -> Result<(), Finding> {
    let words = [
        "run", "--image", "old", "--memory", "256M", "--device", DISK,
    ];
    try_insula(&words)?.refused(
        1,
        &[
            "already attached to a node",
            "nothing was touched",
            "machine info",
        ],
    )
}

/// A node that powers off, resets or crashes loses its device as well; one that reboots in place
/// keeps it.
fn other_endings(before: &Resources) -> Result<(), Finding> {
    let size = ["--memory", "256M", "--device", DISK];
    for task in ["poweroff", "reboot", "panic"] {
        let words = [&size[..], &["--no-reboot"]].concat();
        let node = TestNode::start("ending", &["--image", "old"], &words, task)?;
        node.wait_for_end()?;
        assert_equal(
            "whether an ended node has its device",
            &is_attached(&node)?,
            &false,
        )?;
        spare::assert_base_has_both()?;
        node.remove()?;
    }
    let node = TestNode::start("rebooting", &["--image", "old"], &size, "reboot")?;
    wait_for("the node to be restarted", || {
        Ok((node.inspect()?["starts"].as_u64() >= Some(2)).then_some(()))
    })?;
    assert_equal(
        "whether a node that reboots has its device",
        &is_attached(&node)?,
        &true,
    )?;
    node.remove()?;
    spare::assert_base_has_both()?;
    assert_unchanged(before)
}

fn is_attached(node: &TestNode) -> Result<bool, Finding> {
    Ok(node.inspect()?["devices"][0]["attached"] == true)
}

/// However the command is killed, a device is a running node's or the base's.
fn kills(context: &Context, before: &Resources) -> Result<(), Finding> {
    let words = [
        "run", "--image", "old", "--name", "victim", "--memory", "128M", "--device", DISK,
        "--device", NETWORK,
    ];
    let began = Instant::now();
    insula(&words)?;
    let usual = began.elapsed();
    clean_up(before)?;
    let mut rng = Rng::new();
    let (mut killed, count) = (0, context.count(5, 100));
    for _ in 0..count {
        let delay = usual.mul_f64(rng.f64() * SPREAD);
        let mut child = command(&words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        std::thread::sleep(delay);
        child.kill()?;
        let answer = Answer::new(&words, &child.wait_with_output()?);
        killed += u64::from(answer.status.is_none());
        clean_up(before).map_err(|finding| finding.when(&format!("after a kill at {delay:?}")))?;
    }
    context.figure("kills", count as f64, "1")?;
    context.figure("kills.before_the_end", killed as f64, "1")
}

/// A node whose supervisor may not restart it any more stays stopped, and its device returns to the
/// base. The lockdown lasts until the base's next boot.
fn locked_down(context: &Context, before: &Resources) -> Result<(), Finding> {
    let size = ["--memory", "256M", "--device", DISK, "--on-hang", "restart"];
    let node = TestNode::start("locked", &["--image", "old"], &size, "idle")?;
    node.wait_until_ready()?;
    describe("do=idle")?;
    insula(&["up", "--file", PROJECT])?;
    fs::write("/sys/kernel/security/lockdown", "integrity")?;
    described_runs_on()?;
    hang(&node.name, &fs::read(context.kernel("6.1")?)?)?;
    let view = node.wait_for_end()?;
    assert_equal("why it has ended", &view["reason"], &"unresponsive".into())?;
    wait_for("its device to return", || {
        Ok((!is_attached(&node)?).then_some(()))
    })?;
    spare::assert_base_has_both()?;
    try_insula(&["restart", &node.name])?.refused(1, &["locked down", "left as it is"])?;
    node.remove()?;
    assert_unchanged(before)
}

/// Describes a node without devices.
fn describe(append: &str) -> Result<(), Finding> {
    let node = format!("image = \"old\"\nmemory = \"128M\"\nappend = \"{append}\"\n");
    fs::create_dir_all("/tmp/locked")?;
    Ok(fs::write(PROJECT, format!("[nodes.described]\n{node}"))?)
}

/// A described node that has changed could not be started again: it is not stopped.
fn described_runs_on() -> Result<(), Finding> {
    let view = || Ok::<_, Finding>(insula_json(&["inspect", "described"])?[0].clone());
    let before = view()?;
    describe("do=idle changed=1")?;
    try_insula(&["up", "--file", PROJECT])?.refused(1, &["locked down", "nothing was touched"])?;
    let after = view()?;
    for same in ["state", "starts", "id"] {
        assert_equal(same, &after[same], &before[same])?;
    }
    assert_equal("its state", &after["state"], &"running".into())?;
    insula(&["down", "--file", PROJECT, "--time", "0"]).map(drop)
}

/// Removes the node if there is one; then the devices are the base's.
fn clean_up(before: &Resources) -> Result<(), Finding> {
    for name in names(&["ps", "--all", "--json"])? {
        insula(&["rm", "--force", &name])?;
    }
    spare::assert_base_has_both()?;
    assert_unchanged(before)
}

//! Machine whose local APICs are in x2APIC mode.
//!
//! INIT leaves a core in its mode. Linux in a node leaves x2APIC mode, for lack of interrupt
//! remapping; the lightweight kernel keeps the mode in which it finds its first core.

use std::process::Command;
use std::time::Duration;

use insula_driver::Driver;

use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, wait_for, with_cleanup,
};
use crate::base::support::nodes::peer_node::Peer;
use crate::base::support::nodes::test_node::{TestNode, log, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::{Emulator, SpareDevices};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "x2apic",
    proves: "nodes of each kind run in a machine in x2APIC mode, on cores in either mode",
    machine: Shape {
        cpus: 6,
        spare_devices: SpareDevices::BehindX2apic,
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(400),
    soak_limit: None,
    play,
};

/// The base's root disk.
const DISK: &str = "/dev/nvme0n1";
/// Name of the node that runs the lightweight kernel.
const QUIET: &str = "quiet";

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        is_in_x2apic_mode()?;
        for version in ["6.1", "6.12"] {
            peer_image(context, version)?;
        }
        let before = Resources::now()?;
        all_kinds_at_once(context)?;
        assert_unchanged(&before)?;
        insula(&["machine", "reserve", "--cpu-list", "1,2"])?;
        cores_in_both_modes(context)?;
        insula(&["machine", "release"])?;
        assert_unchanged(&before)
    })
}

fn is_in_x2apic_mode() -> Result<(), Finding> {
    let info = insula_json(&["machine", "info", "--json"])?;
    assert_equal("mode", &info["apic_mode"].as_str(), &Some("x2apic"))?;
    let check = insula_json(&["machine", "check", "--json"])?;
    let findings = check["findings"].as_array().into_iter().flatten();
    let mut findings = findings.filter(|finding| finding["subject"] == "APIC mode");
    let verdict = findings.next().map(|finding| &finding["verdict"]);
    assert_equal("verdict", &verdict, &Some(&"ok".into()))
}

/// Two nodes of Linux, with doorbells, and one of the lightweight kernel, with a program.
fn all_kinds_at_once(context: &Context) -> Result<(), Finding> {
    let driver = Driver::open()?;
    let mut nodes = Vec::new();
    for (version, cores) in [("6.1", "1"), ("6.12", "2")] {
        nodes.push((version, start_linux(context, version, &["--cpus", cores])?));
    }
    start_quiet(&["--cpus", "2"], "x2APIC")?;
    for (version, node) in &nodes {
        node.assert_ready(&context.release(version)?)?;
    }
    interrupt_the_base()?;
    for (_, node) in &nodes {
        Peer::new(&driver, &node.name)?.assert_answers()?;
        was_not_interrupted(node)?;
    }
    runs_programs()?;
    nodes.iter().try_for_each(|(_, node)| node.remove())?;
    insula(&["rm", "--force", QUIET]).map(drop)
}

/// Has the base's disk interrupt it.
fn interrupt_the_base() -> Result<(), Finding> {
    let disk = format!("if={DISK}");
    let read = Command::new("dd")
        .args([&disk, "of=/dev/null", "iflag=direct", "bs=4k", "count=500"])
        .output()?;
    Finding::unless(read.status.success(), || {
        format!("reading a disk: {read:?}")
    })
}

/// No interrupt has reached a node, not even one that it has a use for.
fn was_not_interrupted(node: &TestNode) -> Result<(), Finding> {
    let log = log(&node.name)?;
    let of_others = log.lines().find(|line| {
        line.contains("No irq handler for vector") || line.ends_with(": power button")
    });
    Finding::unless(of_others.is_none(), || {
        format!("{} got an interrupt of the base: {of_others:?}", node.name)
    })
}

/// Linux leaves x2APIC mode on a core that does not return to the base. There the lightweight kernel
/// starts, and takes a core in x2APIC mode as its second.
fn cores_in_both_modes(context: &Context) -> Result<(), Finding> {
    let node = start_linux(context, "6.12", &["--cpu-list", "1"])?;
    node.assert_ready(&context.release("6.12")?)?;
    node.remove()?;
    start_quiet(&["--cpu-list", "1,2"], "xAPIC")?;
    runs_programs()?;
    insula(&["rm", "--force", QUIET]).map(drop)
}

fn start_linux(context: &Context, version: &str, cores: &[&str]) -> Result<TestNode, Finding> {
    let image = peer_image(context, version)?;
    let size = [cores, &["--memory", "256M"]].concat();
    TestNode::start(&image, &["--image", &image], &size, "peer")
}

/// Starts the lightweight kernel on two cores, which must tell that it uses `mode`.
fn start_quiet(cores: &[&str], mode: &str) -> Result<(), Finding> {
    let run = ["run", "--image", "lwk", "--memory", "64M", "--name", QUIET];
    insula(&[&run, cores].concat())?;
    wait_for("both cores to run", || {
        Ok(log(QUIET)?.contains("2 of 2 cores run").then_some(()))
    })?;
    let (log, line) = (log(QUIET)?, format!("local APICs: {mode}"));
    Finding::unless(log.contains(&line), || {
        format!("its log lacks `{line}`: {log}")
    })
}

/// Two processes at once that wait for each other: by interrupts between its cores, and to and from
/// the base.
fn runs_programs() -> Result<(), Finding> {
    let script = "(sleep 0.2; echo slept) | { read -r word; echo $word; }; sleep 0.2";
    let output = insula(&["exec", QUIET, "--", "/bin/sh", "-c", script])?;
    assert_equal("output", &output.as_str(), &"slept\n")
}

//! A core that a node of the lightweight kernel shares with a confined Linux node, by its monitor: both do
//! their work there, and the end of one is not the other's.

use std::time::Duration;

use super::CONFINED;
use crate::base::support::insula_command::{assert_equal, insula, wait_for, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, log, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "shared_confined_core",
    proves: "a lightweight kernel and a confined node share a core: right results, nothing left",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(900),
    soak_limit: Some(Duration::from_secs(3600)),
    play,
};

/// The confined node, and the one that shares its core.
const HOST: &str = "confined";
const NAME: &str = "quiet";
/// The core.
const CPU: &str = "2";

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        peer_image(context, "6.12")?;
        let before = Resources::now()?;
        let host = start_host(context)?;
        host.wait_until_ready()?;
        let shared = Resources::now()?;
        starts(&[])?;
        both_work(&host)?;
        insula(&["stop", "--time", "60", NAME])?;
        insula(&["rm", NAME])?;
        host.assert_works()?;
        assert_unchanged(&shared)?;
        host.remove()?;
        assert_unchanged(&before)
    })
}

fn start_host(context: &Context) -> Result<TestNode, Finding> {
    let image = peer_image(context, "6.12")?;
    let size = [&CONFINED[..], &["--cpu-list", CPU, "--memory", "256M"]].concat();
    TestNode::start(HOST, &["--image", &image], &size, "compute")
}

fn starts(more: &[&str]) -> Result<(), Finding> {
    let words = [
        "run",
        "--image",
        "lwk",
        "--share-core",
        CPU,
        "--share-by",
        "vmm",
        "--memory",
        "64M",
        "--name",
        NAME,
    ];
    insula(&[&words, more].concat()).map(drop)
}

fn logs(what: &str) -> Result<(), Finding> {
    wait_for(&format!("the log to contain `{what}`"), || {
        Ok(log(NAME)?.contains(what).then_some(()))
    })
}

/// A program of the node computes, another makes calls, and the confined node goes on.
fn both_work(host: &TestNode) -> Result<(), Finding> {
    logs("1 of 1 cores run")?;
    let count = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo $i";
    let counted = insula(&["exec", NAME, "--", "/bin/sh", "-c", count])?;
    assert_equal("the program's count", &counted.as_str(), &"20000\n")?;
    let version = std::fs::read_to_string("/proc/version")?;
    let read = insula(&["exec", NAME, "--", "/bin/cat", "/proc/version"])?;
    assert_equal("what it read", &read, &version)?;
    host.assert_works()
}

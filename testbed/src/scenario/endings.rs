//! The ways in which a node ends, beside one that must not notice.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::holdings::{Holdings, assert_unchanged, online};
use super::insula_command::{assert_equal, attended, insula, insula_json, wait_for};
use super::test_node::{TestNode, add_image, log};
use super::{Context, Finding, Module, Scenario, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "endings",
    proves: "power-off, reboot, panic, halt, stop and kill of a node harm nobody and are told apart",
    machine: Shape::USUAL,
    module: Module::Loaded,
    limit: Duration::from_secs(300),
    soak_limit: None,
    play,
};

const IMAGE: &str = "debian";

/// A way for a node to end, which starts one, sees it end and removes it.
type Ending = fn() -> Result<(), Finding>;

const ENDINGS: [(&str, Ending); 6] = [
    ("power-off", || ends_itself("poweroff", "power-off")),
    ("reboot", || ends_itself("reboot", "reset")),
    ("panic", crashes),
    ("halt", halts),
    ("stop", stopped),
    ("kill", killed),
];

fn play(context: &Context) -> Result<(), Finding> {
    attended(|| {
        let version = version_of_the_base()?;
        add_image(context, IMAGE, version)?;
        let size = ["--cpus", "1", "--memory", "192M"];
        let neighbour = TestNode::start("neighbour", &["--image", IMAGE], &size, "compute")?;
        neighbour.assert_ready(&context.release(version)?)?;
        let alone = Holdings::now()?;
        for (name, ending) in ENDINGS {
            ending()
                .and_then(|()| neighbour.assert_works())
                .and_then(|()| assert_unchanged(&alone))
                .map_err(|finding| finding.when(name))?;
        }
        Ok(())
    })
}

/// On each base the nodes run that base's own kernel, so that all are tried.
fn version_of_the_base() -> Result<&'static str, Finding> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let versions = ["6.12", "6.1"];
    let mut matching = versions.into_iter().filter(|one| release.starts_with(one));
    matching
        .next()
        .ok_or_else(|| Finding::new(format!("no node has the base's kernel {release}")))
}

fn start(task: &str) -> Result<TestNode, Finding> {
    let size = ["--cpus", "2", "--memory", "256M"];
    TestNode::start("mortal", &["--image", IMAGE], &size, task)
}

/// A node that says it has ended is stopped without anyone looking: its cores are back, its memory
/// and its log are there until it is removed.
fn ends_itself(task: &str, reason: &str) -> Result<(), Finding> {
    let before = online()?;
    let node = start(task)?;
    let view = node.wait_for_end()?;
    assert_equal("cores", &online()?, &before)?;
    assert_equal("reason", &view["reason"].as_str(), &Some(reason))?;
    assert_listed(&node, reason)?;
    log_is_whole(&node)?;
    memory_goes_with(&node)
}

/// A panic halts the node and tells nobody: who looks finds the crash, and what led to it.
fn crashes() -> Result<(), Finding> {
    let before = online()?;
    let node = start("panic")?;
    let view = node.wait_for_end()?;
    assert_equal("cores", &online()?, &before)?;
    assert_equal("reason", &view["reason"].as_str(), &Some("crashed"))?;
    // Listed without --all: a crash is not to be missed.
    let listed = insula_json(&["ps", "--json"])?;
    let found = find(&listed, &node.name);
    Finding::unless(found["reason"] == "crashed", || format!("ps: {listed}"))?;
    let last = view["last_log"].to_string();
    Finding::unless(last.contains("sysrq triggered crash"), || {
        format!("the last log lines do not tell of the crash: {last}")
    })?;
    log_is_whole(&node)?;
    memory_goes_with(&node)
}

/// A halted kernel has not ended, as far as anyone can tell. It does not hear when it is asked to
/// end, and is stopped all the same.
fn halts() -> Result<(), Finding> {
    let before = online()?;
    let node = start("halt")?;
    let is_halted = || Ok(log(&node.name)?.contains("System halted").then_some(()));
    wait_for("the node to halt", is_halted)?;
    node.assert_runs()?;
    insula(&["stop", "--time", "1", &node.name])?;
    assert_equal("cores", &online()?, &before)?;
    assert_listed(&node, "stopped")?;
    log_is_whole(&node)?;
    memory_goes_with(&node)
}

/// A node that is asked to end switches itself off.
fn stopped() -> Result<(), Finding> {
    let before = online()?;
    let node = start("compute")?;
    // Its init listens to the button from about when it is ready on.
    node.assert_works()?;
    // Far longer than a node needs: should it not hear, its end is of another kind.
    insula(&["stop", "--time", "60", &node.name])?;
    assert_equal("cores", &online()?, &before)?;
    assert_listed(&node, "power-off")?;
    Finding::unless(log(&node.name)?.contains("power button"), || {
        "the node switched itself off without being asked".into()
    })?;
    memory_goes_with(&node)
}

/// One that is killed is not asked, and may be killed while it boots.
fn killed() -> Result<(), Finding> {
    let before = online()?;
    let node = start("idle")?;
    insula(&["kill", &node.name])?;
    assert_equal("cores", &online()?, &before)?;
    assert_listed(&node, "killed")?;
    memory_goes_with(&node)
}

fn find<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut nodes = list.as_array().into_iter().flatten();
    nodes
        .find(|node| node["name"] == name)
        .unwrap_or(&Value::Null)
}

fn assert_listed(node: &TestNode, reason: &str) -> Result<(), Finding> {
    let listed = insula_json(&["ps", "--all", "--json"])?;
    let found = find(&listed, &node.name);
    let (state, why) = (found["state"].as_str(), found["reason"].as_str());
    assert_equal(
        "state and reason",
        &(state, why),
        &(Some("stopped"), Some(reason)),
    )
}

/// It can be read after death, from the kernel's first line to what the node said itself.
fn log_is_whole(node: &TestNode) -> Result<(), Finding> {
    let text = log(&node.name)?;
    let first = text.lines().next().unwrap_or_default();
    Finding::unless(first.contains("Linux version "), || {
        format!("the log does not begin with the kernel's first line but: {first}")
    })?;
    node.wait_until_ready()
}

/// The memory of an ended node is kept, and goes when it is removed.
fn memory_goes_with(node: &TestNode) -> Result<(), Finding> {
    let with = Holdings::now()?.taken;
    insula(&["rm", &node.name])?;
    let without = Holdings::now()?.taken;
    assert_equal("memory given back", &(with - without), &(256 << 20))
}

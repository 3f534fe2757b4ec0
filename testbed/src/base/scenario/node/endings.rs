//! Ways in which a node ends, beside another node that must not notice, with the base under load.

use std::time::Duration;

use serde_json::Value;

use crate::base::support::insula_command::{assert_equal, insula, insula_json, with_cleanup};
use crate::base::support::load::Load;
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image, log};
use crate::base::support::resources::{Resources, assert_unchanged, online};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "endings",
    proves: "power-off, reboot, panic, halt, stop and kill of a node harm no other node and are distinguished",
    machine: Shape {
        cpus: 5,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

const IMAGE: &str = "debian";

/// Tasks by which a node ends itself, each with the reported reason and the node's cores: Linux's
/// orderly shutdowns and its immediate ones.
const ENDINGS: [(&str, &str, &str); 8] = [
    ("poweroff", "power-off", "1"),
    ("poweroff", "power-off", "2"),
    ("sysrq-o", "power-off", "2"),
    ("reboot", "reset", "2"),
    ("sysrq-b", "reset", "1"),
    ("panic", "crashed", "2"),
    ("panic-reset", "crashed", "1"),
    ("halt", "halted", "2"),
];

/// Starts a node, ends it from outside and removes it.
type Action = fn() -> Result<(), Finding>;

const ACTIONS: [(&str, Action); 2] = [("stop", stopped), ("kill", killed)];

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        // On each base the nodes run that base's own kernel, so that all kernels are tested.
        let version = context.version_of_the_base()?;
        add_unpacked_image(context, IMAGE, &version)?;
        let size = ["--cpus", "1", "--memory", "128M"];
        let neighbour = TestNode::start("neighbour", &["--image", IMAGE], &size, "compute")?;
        neighbour.assert_ready(&context.release(&version)?)?;
        let load = Load::start()?;
        let alone = Resources::now()?;
        let unharmed = || neighbour.assert_works().and(assert_unchanged(&alone));
        for (task, reason, cpus) in ENDINGS {
            ends_itself(task, reason, cpus)
                .and_then(|()| unharmed())
                .map_err(|finding| finding.when(task))?;
        }
        for (name, action) in ACTIONS {
            action()
                .and_then(|()| unharmed())
                .map_err(|finding| finding.when(name))?;
        }
        load.assert_busy()
    })
}

fn start(cpus: &str, task: &str) -> Result<TestNode, Finding> {
    let size = ["--cpus", cpus, "--memory", "128M", "--no-reboot"];
    TestNode::start("mortal", &["--image", IMAGE], &size, task)
}

/// A node that ends itself is stopped: its cores are returned, its log remains until it is removed.
fn ends_itself(task: &str, reason: &str, cpus: &str) -> Result<(), Finding> {
    let before = online()?;
    let node = start(cpus, task)?;
    let view = node.wait_for_end()?;
    assert_equal("reason", &view["reason"].as_str(), &Some(reason))?;
    log_is_whole(&node)?;
    if reason == "crashed" {
        crash_is_shown(&view)?;
    }
    assert_equal("cores", &online()?, &before)?;
    assert_listed(&node, reason)?;
    insula(&["rm", &node.name]).map(drop)
}

/// The last lines of its log are shown with it.
fn crash_is_shown(view: &Value) -> Result<(), Finding> {
    let last = view["last_log"].to_string();
    Finding::unless(last.contains("sysrq triggered crash"), || {
        format!("the last log lines do not show the crash: {last}")
    })
}

/// A node that is asked to end powers itself off.
fn stopped() -> Result<(), Finding> {
    let before = online()?;
    let node = start("2", "compute")?;
    // Its init listens to the button only once it is ready.
    node.assert_works()?;
    // Far longer than a node needs: if it did not react, it would be killed, which has another
    // reason.
    insula(&["stop", "--time", "60", &node.name])?;
    assert_equal("cores", &online()?, &before)?;
    assert_listed(&node, "power-off")?;
    Finding::unless(log(&node.name)?.contains("power button"), || {
        "the node switched itself off without being asked".into()
    })?;
    memory_is_freed_with(&node)
}

/// A node that is killed is not asked, and may be killed while it boots.
fn killed() -> Result<(), Finding> {
    let before = online()?;
    let node = start("2", "idle")?;
    insula(&["kill", &node.name])?;
    assert_equal("cores", &online()?, &before)?;
    assert_listed(&node, "killed")?;
    memory_is_freed_with(&node)
}

/// The list shows a crash without options.
fn assert_listed(node: &TestNode, reason: &str) -> Result<(), Finding> {
    let words: &[&str] = match reason {
        "crashed" => &["ps", "--json"],
        _ => &["ps", "--all", "--json"],
    };
    let listed = insula_json(words)?;
    let mut listed = listed.as_array().into_iter().flatten();
    let found = listed.find(|one| one["name"] == node.name.as_str());
    let found = found.unwrap_or(&Value::Null);
    assert_equal(
        "state and reason",
        &(found["state"].as_str(), found["reason"].as_str()),
        &(Some("stopped"), Some(reason)),
    )
}

/// The log of an ended node is complete, from the kernel's first line to the node's own last.
fn log_is_whole(node: &TestNode) -> Result<(), Finding> {
    let text = log(&node.name)?;
    let first = text.lines().next().unwrap_or_default();
    let whole = first.contains("Linux version ") && text.contains("insula-node: ready ");
    Finding::unless(whole, || format!("the log is not whole: {text}"))
}

/// The memory of an ended node is kept until the node is removed.
fn memory_is_freed_with(node: &TestNode) -> Result<(), Finding> {
    let with = Resources::now()?.allocated;
    insula(&["rm", &node.name])?;
    let without = Resources::now()?.allocated;
    assert_equal("freed memory", &(with - without), &(128 << 20))
}

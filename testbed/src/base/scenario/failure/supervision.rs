//! Supervision of nodes: each by a process that may be killed at any moment.

use std::time::Duration;

use fastrand::Rng;

use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, wait_for, with_cleanup,
};
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image, log};
use crate::base::support::resources::{Resources, assert_unchanged, online};
use crate::base::support::supervisor_process::{self, SystemLog};
use crate::base::{Context, Finding, Module, Scenario, Shape, hang};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "supervision",
    proves: "nodes are restarted by policy, in place; their supervisors may be killed at any moment",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(600),
    soak_limit: Some(Duration::from_secs(3500)),
    play,
};

const IMAGE: &str = "debian";
const KERNEL: &str = "6.1";
/// Node of all parts.
const NAME: &str = "mortal";

/// A part: a duty of a node's supervisor, shown from the start of a node to its removal.
type Part = fn(&Context) -> Result<(), Finding>;

const PARTS: [(&str, Part); 8] = [
    ("reboot", reboots_in_place),
    ("on-failure", fails_while_booting),
    ("always", is_always_started),
    ("hang", hangs),
    ("halt", halts),
    ("restart", restarts_for_its_user),
    ("killed supervisor", loses_its_supervisor),
    ("killed at random", loses_it_at_any_moment),
];

fn play(context: &Context) -> Result<(), Finding> {
    let _shown = SystemLog::listen()?;
    with_cleanup(|| {
        add_unpacked_image(context, IMAGE, KERNEL)?;
        let alone = Resources::now()?;
        for (name, part) in PARTS {
            println!("{name}");
            part(context)
                .and_then(|()| assert_unchanged(&alone))
                .map_err(|finding| finding.when(name))?;
        }
        supervisor_process::assert_none()
    })
}

fn start(cpus: &str, task: &str, options: &[&str]) -> Result<TestNode, Finding> {
    let size = [&["--cpus", cpus, "--memory", "192M"], options].concat();
    TestNode::start(NAME, &["--image", IMAGE], &size, task)
}

/// Waits until the node has been started so often.
fn wait_for_starts(node: &TestNode, starts: u64) -> Result<(), Finding> {
    wait_for(&format!("start {starts}"), || {
        let view = node.inspect()?;
        Ok((view["starts"].as_u64() >= Some(starts)).then_some(()))
    })
}

/// A node that reboots keeps its cores and name, and is delayed a little more each time.
fn reboots_in_place(_: &Context) -> Result<(), Finding> {
    let node = start("2", "reboot", &[])?;
    let (first, beside) = (node.inspect()?, online()?);
    wait_for("the third start", || {
        assert_equal("the base's cores meanwhile", &online()?, &beside)?;
        Ok((node.inspect()?["starts"].as_u64() >= Some(3)).then_some(()))
    })?;
    let later = node.inspect()?;
    for same in ["id", "cpus", "apic_ids", "memory_bytes"] {
        assert_equal(same, &later[same], &first[same])?;
    }
    insula(&["kill", NAME])?;
    let view = node.inspect()?;
    assert_equal("restarting", &view["restarting"].as_bool(), &Some(false))?;
    // It may just have ended by itself, and waited for its restart.
    let reason = view["reason"].as_str();
    Finding::unless(matches!(reason, Some("killed" | "reset")), || {
        format!("it has ended by {reason:?}")
    })?;
    node.remove()
}

/// A kernel without an init panics: it is restarted as often as its policy allows.
fn fails_while_booting(_: &Context) -> Result<(), Finding> {
    let options = ["--restart", "on-failure:1"];
    let node = start("1", "idle rdinit=/none", &options)?;
    let view = wait_for("the last of its ends", || {
        let view = node.inspect()?;
        let ended = view["state"] == "stopped" && view["restarting"] == false;
        Ok((ended && view["supervised"] == false).then_some(view))
    })?;
    assert_equal("starts", &view["starts"].as_u64(), &Some(2))?;
    assert_equal("restarts", &view["restarts"].as_u64(), &Some(1))?;
    assert_equal("reason", &view["reason"].as_str(), &Some("crashed"))?;
    let last = log(NAME)?;
    Finding::unless(last.contains("Unable to mount root fs"), || {
        format!("it crashed for another reason:\n{last}")
    })?;
    node.remove()
}

/// The node is restarted until its user stops it: then it stays stopped. A missing image is waited
/// for.
fn is_always_started(context: &Context) -> Result<(), Finding> {
    let node = start("1", "poweroff", &["--restart", "always"])?;
    wait_for_starts(&node, 2)?;
    insula(&["image", "rm", IMAGE])?;
    let waiting = wait_for("a start that fails", || {
        let view = node.inspect()?;
        let waits =
            view["state"] == "stopped" && supervisor_process::has_logged("there is no image");
        Ok(waits.then_some(view))
    })?;
    assert_equal("restarting", &waiting["restarting"].as_bool(), &Some(true))?;
    add_unpacked_image(context, IMAGE, KERNEL)?;
    wait_for_starts(&node, waiting["starts"].as_u64().unwrap_or_default() + 1)?;
    insula(&["stop", "--time", "60", NAME])?;
    let stopped = node.inspect()?;
    assert_equal("state", &stopped["state"].as_str(), &Some("stopped"))?;
    assert_equal("restarting", &stopped["restarting"].as_bool(), &Some(false))?;
    wait_for("the supervisor to leave", || {
        Ok((node.inspect()?["supervised"] == false).then_some(()))
    })?;
    node.remove()
}

/// A kernel that keeps its interrupts off is shown as unresponsive, or restarted.
fn hangs(context: &Context) -> Result<(), Finding> {
    let kernel = std::fs::read(context.kernel(KERNEL)?)?;
    let node = start("1", "idle", &[])?;
    node.wait_until_ready()?;
    hang(NAME, &kernel)?;
    wait_for("the node to be called unresponsive", || {
        Ok((listed()?["unresponsive"] == true).then_some(()))
    })?;
    node.assert_runs()?;
    node.remove()?;

    let node = start("1", "idle", &["--on-hang", "restart"])?;
    node.wait_until_ready()?;
    hang(NAME, &kernel)?;
    wait_for_starts(&node, 2)?;
    node.wait_until_ready()?;
    node.remove()
}

/// A halted kernel does not report its end, and is detected all the same.
fn halts(_: &Context) -> Result<(), Finding> {
    let node = start("2", "halt", &[])?;
    let view = node.wait_for_end()?;
    assert_equal("reason", &view["reason"].as_str(), &Some("halted"))?;
    Finding::unless(log(NAME)?.contains("System halted"), || {
        "the log does not show the halt".into()
    })?;
    node.remove()
}

/// Running or stopped, by name.
fn restarts_for_its_user(_: &Context) -> Result<(), Finding> {
    let node = start("1", "idle", &[])?;
    node.wait_until_ready()?;
    insula(&["kill", NAME])?;
    insula(&["restart", NAME])?;
    // Before it handles its power button.
    insula(&["restart", "--time", "0", NAME])?;
    node.wait_until_ready()?;
    let view = node.inspect()?;
    assert_equal("starts", &view["starts"].as_u64(), &Some(3))?;
    assert_equal("supervised", &view["supervised"].as_bool(), &Some(true))?;
    node.remove()
}

/// The node runs on, shown as unsupervised, until a command gives it another.
fn loses_its_supervisor(_: &Context) -> Result<(), Finding> {
    let node = start("1", "idle", &[])?;
    node.wait_until_ready()?;
    assert_equal("supervised", &listed()?["supervised"], &true.into())?;
    let score = supervisor_process::oom_score(NAME)?;
    assert_equal("its OOM score adjustment", &score, &-900)?;
    supervisor_process::kill(NAME)?;
    for when in ["after the kill", "listed again"] {
        assert_equal(when, &listed()?["supervised"], &false.into())?;
    }
    insula(&["supervise"])?;
    assert_equal("supervised again", &listed()?["supervised"], &true.into())?;
    node.wait_until_ready()?;
    node.remove()
}

fn listed() -> Result<serde_json::Value, Finding> {
    let list = insula_json(&["ps", "--all", "--json"])?;
    let mut nodes = list.as_array().into_iter().flatten();
    let found = nodes.find(|node| node["name"] == NAME);
    found
        .cloned()
        .ok_or_else(|| Finding::new("the node is not listed"))
}

/// Also while it restarts its node: all that is listed is complete, and goes on.
fn loses_it_at_any_moment(context: &Context) -> Result<(), Finding> {
    let seed = Rng::new().u64(..);
    println!("seed: {seed}");
    let mut rng = Rng::with_seed(seed);
    let kills = context.count(2, 200);
    let mut killed_while_stopped = 0;
    for number in 0..kills {
        let node = start("1", "reboot", &[])?;
        wait_for_starts(&node, 1 + rng.u64(..2))?;
        std::thread::sleep(Duration::from_millis(rng.u64(..3000)));
        supervisor_process::kill(NAME)?;
        let view = listed()?;
        let whole = view["state"] == "running" || view["state"] == "stopped";
        Finding::unless(whole, || {
            format!("kill {number}: an incomplete node is left: {view}")
        })?;
        killed_while_stopped += u64::from(view["state"] == "stopped");
        // Another supervisor continues the restarts.
        insula(&["supervise", NAME])?;
        let starts = view["starts"].as_u64().unwrap_or_default();
        wait_for_starts(&node, starts + 1).map_err(|finding| {
            finding.when(&format!("kill {number}, after which it was {view}"))
        })?;
        node.remove()?;
    }
    context.figure("supervision.kills", kills as f64, "1")?;
    context.figure(
        "supervision.kills_while_stopped",
        killed_while_stopped as f64,
        "1",
    )
}

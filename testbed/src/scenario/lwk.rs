//! The lightweight kernel as a node: one word starts it, and what holds for a Linux node holds for
//! it.

use super::holdings::online;
use super::insula_command::{assert_equal, attended, insula, insula_json, wait_for};
use super::test_node::log;
use super::{Context, Finding, Module, Scenario, Shape};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "lwk",
    proves: "the built-in lightweight kernel starts, logs, is looked after, ends and crashes like any node",
    machine: Shape::USUAL,
    module: Module::Loaded,
    limit: std::time::Duration::from_secs(300),
    soak_limit: None,
    play,
};

const NAME: &str = "quiet";

fn play(_context: &Context) -> Result<(), Finding> {
    attended(|| {
        let before = online()?;
        starts(&[])?;
        is_felt()?;
        insula(&["stop", "--time", "60", NAME])?;
        ended("power-off")?;
        assert_equal("cores", &online()?, &before)?;
        says("the power button was pressed")?;
        insula(&["restart", NAME])?;
        says("3 of 3 cores run")?;
        insula(&["kill", NAME])?;
        ended("killed")?;
        insula(&["rm", NAME])?;
        starts(&["--append", "crash"])?;
        crashes()?;
        assert_equal("cores", &online()?, &before)
    })
}

fn starts(more: &[&str]) -> Result<(), Finding> {
    let words = [
        "run", "--image", "lwk", "--cpus", "3", "--memory", "64M,chunk=8M", "--name", NAME,
    ];
    insula(&[&words, more].concat())?;
    says("3 of 3 cores run")
}

fn says(what: &str) -> Result<(), Finding> {
    wait_for(&format!("the log to say `{what}`"), || {
        Ok(log(NAME)?.contains(what).then_some(()))
    })
}

/// Its supervisor sends it interrupts, which it counts.
fn is_felt() -> Result<(), Finding> {
    let view = insula_json(&["ps", "--json"])?;
    assert_equal("state", &view[0]["state"].as_str(), &Some("running"))?;
    assert_equal("supervised", &view[0]["supervised"].as_bool(), &Some(true))?;
    assert_equal("unresponsive", &view[0]["unresponsive"].as_bool(), &Some(false))
}

fn ended(reason: &str) -> Result<(), Finding> {
    let view = insula_json(&["inspect", NAME])?;
    assert_equal("reason", &view[0]["reason"].as_str(), &Some(reason))
}

/// A panic is seen by whoever looks, and its last words are told with it.
fn crashes() -> Result<(), Finding> {
    let view = wait_for("the crash to be seen", || {
        let view = insula_json(&["inspect", NAME])?;
        Ok((view[0]["reason"] == "crashed").then(|| view[0].clone()))
    })?;
    let last = view["last_log"].to_string();
    Finding::unless(last.contains("Kernel panic - not syncing"), || {
        format!("the last log lines do not tell of the panic: {last}")
    })
}

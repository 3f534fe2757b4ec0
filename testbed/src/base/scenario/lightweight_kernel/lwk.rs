//! The lightweight kernel as a node: it starts from a built-in image, and otherwise behaves like a
//! Linux node.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use crate::base::support::insula_command::{
    assert_equal, command, insula, insula_json, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::test_node::log;
use crate::base::support::poll_rate::assert_idle_rate;
use crate::base::support::resources::{Resources, online};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::HostRequest;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "lwk",
    proves: "the built-in lightweight kernel starts, logs, is supervised, ends and crashes like any node",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_1],
    limit: Duration::from_secs(300),
    soak_limit: None,
    play,
};

const NAME: &str = "quiet";
/// Its cores.
const CORES: std::ops::RangeInclusive<u32> = 1..=3;

fn play(_: &Context) -> Result<(), Finding> {
    play_on(&[])
}

/// Plays it on nodes with the further arguments `node`.
pub(in crate::base::scenario) fn play_on(node: &[&str]) -> Result<(), Finding> {
    with_cleanup(|| {
        let before = online()?;
        starts(node)?;
        // Without a program so far.
        sends_machine_checks();
        assert_idle_rate()?;
        is_probed()?;
        runs_programs()?;
        computes()?;
        is_killed()?;
        insula(&["stop", "--time", "60", NAME])?;
        ended("power-off")?;
        assert_equal("cores", &online()?, &before)?;
        logs("the power button was pressed")?;
        insula(&["restart", NAME])?;
        logs("3 of 3 cores run")?;
        insula(&["kill", NAME])?;
        ended("killed")?;
        insula(&["rm", NAME])?;
        is_removed_with_its_program(node)?;
        starts(&[&["--rm", "--append", "crash"], node].concat())?;
        crashes()?;
        assert_equal("cores", &online()?, &before)
    })
}

fn starts(more: &[&str]) -> Result<(), Finding> {
    let words = [
        "run",
        "--image",
        "lwk",
        "--cpus",
        "3",
        "--memory",
        "64M,chunk=8M",
        "--name",
        NAME,
    ];
    insula(&[&words, more].concat())?;
    logs("3 of 3 cores run")
}

fn logs(what: &str) -> Result<(), Finding> {
    wait_for(&format!("the log to contain `{what}`"), || {
        Ok(log(NAME)?.contains(what).then_some(()))
    })
}

/// Its supervisor's health probe sends it interrupts, which it counts.
fn is_probed() -> Result<(), Finding> {
    let view = insula_json(&["ps", "--json"])?;
    assert_equal("state", &view[0]["state"].as_str(), &Some("running"))?;
    assert_equal("supervised", &view[0]["supervised"].as_bool(), &Some(true))?;
    assert_equal(
        "unresponsive",
        &view[0]["unresponsive"].as_bool(),
        &Some(false),
    )
}

/// All its cores get a machine check of another core's making. A core without a handler would shut
/// the whole machine down, which would end everything that follows.
fn sends_machine_checks() {
    for core in CORES {
        println!("{}", HostRequest::MachineCheck { core }.to_line());
    }
}

/// A program goes on that computes meanwhile.
fn computes() -> Result<(), Finding> {
    let count = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; echo $i";
    let mut program = command(&["exec", NAME, "--", "/bin/sh", "-c", count]);
    let program = program.stdout(Stdio::piped()).spawn()?;
    let process = format!("/proc/{}/exe", program.id());
    wait_for("the proxy to be the program's", || {
        let path = std::fs::read_link(&process)?;
        Ok((!path.ends_with("insula")).then_some(()))
    })?;
    sends_machine_checks();
    let output = program.wait_with_output()?;
    assert_equal(
        "interrupts counted by the kernel",
        &output.stdout.as_slice(),
        &b"100000\n".as_slice(),
    )
}

/// Programs of the base, unmodified, with its files, environment and exit statuses.
fn runs_programs() -> Result<(), Finding> {
    insula(&["exec", NAME, "--", "/bin/true"])?;
    let answer = try_insula(&["exec", NAME, "--", "/bin/false"])?;
    assert_equal("status of false", &answer.status, &Some(1))?;
    let echoed = insula(&["exec", NAME, "--", "/bin/echo", "from", "the node"])?;
    assert_equal("echo", &echoed.as_str(), &"from the node\n")?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let read = insula(&["exec", NAME, "--", "/bin/cat", "/proc/sys/kernel/osrelease"])?;
    assert_equal("a file", &read, &release)
}

/// A program that waits in a delegated call is ended by a signal to its pid on the base; the node
/// goes on.
fn is_killed() -> Result<(), Finding> {
    let mut program = command(&["exec", NAME, "--", "/bin/sleep", "1000"]).spawn()?;
    let link = format!("/proc/{}/exe", program.id());
    wait_for("the proxy to be the program's", || {
        let path = std::fs::read_link(&link)?;
        Ok(path.ends_with("sleep").then_some(()))
    })?;
    let pid = nix::unistd::Pid::from_raw(program.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
    let status = wait_for("the program to end", || Ok(program.try_wait()?))?;
    assert_equal("its signal", &status.signal(), &Some(15))?;
    insula(&["exec", NAME, "--", "/bin/true"]).map(drop)
}

/// A node that is to be removed at its end is, and the next one can have its cores, memory and
/// name.
fn is_removed_with_its_program(node: &[&str]) -> Result<(), Finding> {
    let before = Resources::now()?;
    starts(&[&["--rm"], node].concat())?;
    insula(&["kill", NAME])?;
    for status in [3, 0, 4] {
        let variable = format!("STATUS={status}");
        let run = ["run", "--image", "lwk", "--cpus", "3", "--memory", "64M"];
        let program = "[ $PWD = /usr ] && exit $STATUS";
        let environment = ["--env", &variable, "-w", "/usr"];
        let words = [
            &["--name", NAME],
            &environment[..],
            &["--", "/bin/sh", "-c", program],
        ]
        .concat();
        let answer = try_insula(&[&run[..], node, &words].concat())?;
        assert_equal("status", &answer.status, &Some(status))?;
    }
    wait_for("the last node to be removed", || {
        Ok((Resources::now()? == before).then_some(()))
    })
}

fn ended(reason: &str) -> Result<(), Finding> {
    let view = insula_json(&["inspect", NAME])?;
    assert_equal("reason", &view[0]["reason"].as_str(), &Some(reason))
}

/// A panic is detected by its supervisor, which stops the node, and the last lines of the log are
/// shown with it.
fn crashes() -> Result<(), Finding> {
    let view = wait_for("the node to end", || {
        let view = insula_json(&["inspect", NAME])?[0].clone();
        Ok((view["state"] == "stopped").then_some(view))
    })?;
    assert_equal("reason", &view["reason"].as_str(), &Some("crashed"))?;
    let last = view["last_log"].to_string();
    Finding::unless(last.contains("Kernel panic - not syncing"), || {
        format!("the last log lines do not show the panic: {last}")
    })
}

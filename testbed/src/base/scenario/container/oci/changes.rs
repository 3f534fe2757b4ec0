//! Containers whose limits change while they run, and that are paused.

use std::fs;

use serde_json::{Value, json};

use super::bundles::{NAME, OUTPUT, configure, create, delete_ended, runtime, wait_for_output};
use super::nothing_is_left;
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula};

/// Sizes of the node's memory, in bytes: the usual one, and more.
const USUAL: &str = "536870912";
const MORE: &str = "671088640";

pub(super) fn play() -> Result<(), Finding> {
    configure(|config| config["annotations"] = json!({"run.insula.max-cpus": "2"}))?;
    create()?;
    runtime(&["start", NAME])?.with_status(0)?;
    wait_for_output("ready")?;
    resized()?;
    signalled()?;
    paused()?;
    delete_ended(NAME)?;
    nothing_is_left()
}

/// Limits of memory and processor time are the size of its node, that of processes is its own.
fn resized() -> Result<(), Finding> {
    let before = memory_kib()?;
    let more = ["--memory", MORE, "--cpu-quota=150000", "--pids-limit", "50"];
    runtime(&[&["update"], &more[..], &[NAME]].concat())?.with_status(0)?;
    let group = format!("/sys/fs/cgroup/insula/{NAME}/pids.max");
    let limit = insula(&["exec", NAME, "busybox", "cat", &group])?;
    assert_equal("its processes", &limit.trim(), &"50")?;
    assert_equal("its cores", &in_it("busybox nproc")?.trim(), &"2")?;
    let is_grown = || -> Result<bool, Finding> { Ok(memory_kib()? > before + (64 << 10)) };
    assert_equal("more memory", &is_grown()?, &true)?;
    runtime(&["update", "--memory", "600000000", NAME])?.refused(&["multiple"])?;
    let file = format!("{OUTPUT}.limits");
    let limits = format!(
        r#"{{"memory": {{"limit": {USUAL}}}, "cpu": {{"quota": 50000}}, "pids": {{"limit": -1}}}}"#
    );
    fs::write(&file, limits)?;
    runtime(&["update", "-r", &file, NAME])?.with_status(0)?;
    assert_equal("its cores", &in_it("busybox nproc")?.trim(), &"1")?;
    assert_equal("more memory", &is_grown()?, &false)?;
    let limit = insula(&["exec", NAME, "busybox", "cat", &group])?;
    assert_equal("its processes", &limit.trim(), &"max")
}

/// Signals that the program does not handle do nothing, as to any first process: they neither end nor stop what stands for it.
fn signalled() -> Result<(), Finding> {
    for signal in ["TSTP", "28", "SIGRTMIN+3"] {
        runtime(&["kill", NAME, signal])?.with_status(0)?;
        assert_equal("its program", &in_it("echo runs")?.as_str(), &"runs\n")?;
    }
    runtime(&["kill", NAME, "NOSUCH"])?.refused(&["no signal 'NOSUCH'"])
}

/// A paused container stands still in its node, which does not, and takes signals when it goes on.
fn paused() -> Result<(), Finding> {
    runtime(&["resume", NAME])?.refused(&["is not paused"])?;
    runtime(&["pause", NAME])?.with_status(0)?;
    let state: Value = serde_json::from_str(&runtime(&["state", NAME])?.with_status(0)?)?;
    assert_equal("its state", &state["status"], &"paused".into())?;
    let events = format!("/sys/fs/cgroup/insula/{NAME}/cgroup.events");
    let events = insula(&["exec", NAME, "busybox", "cat", &events])?;
    Finding::unless(events.contains("frozen 1"), || events.clone())?;
    for words in [&["pause", NAME][..], &["exec", NAME, "true"]] {
        runtime(words)?.refused(&["is paused"])?;
    }
    runtime(&["kill", NAME, "TERM"])?.with_status(0)?;
    let printed = fs::read_to_string(OUTPUT)?;
    assert_equal("what it prints", &printed.as_str(), &"ready\n")?;
    runtime(&["resume", NAME])?.with_status(0)?;
    wait_for_output("caught")
}

/// What a script prints in it.
fn in_it(script: &str) -> Result<String, Finding> {
    runtime(&["exec", NAME, "sh", "-c", script])?.with_status(0)
}

fn memory_kib() -> Result<u64, Finding> {
    let line = insula(&["exec", NAME, "busybox", "grep", "MemTotal", "/proc/meminfo"])?;
    Ok(line.split_whitespace().nth(1).unwrap_or_default().parse()?)
}

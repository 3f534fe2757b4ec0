//! A core that a node of the lightweight kernel shares with a confined Linux node, by its monitor: both do
//! their work there, and the end of one is not the other's.

use std::process::Child;
use std::time::Duration;

use super::CONFINED;
use crate::base::scenario::resources::update;
use crate::base::support::insula_command::{
    Answer, assert_equal, command, insula, insula_json, numbers, try_insula, wait_for, with_cleanup,
};
use crate::base::support::nodes::test_node::{TestNode, log, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::supervisor_process;
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
    play: |context| {
        works(context, "compute")?;
        with_cleanup(|| {
            peer_image(context, "6.12")?;
            let before = Resources::now()?;
            update::with_node(context, "6.12", &CONFINED, goes_on_through_updates)?;
            assert_unchanged(&before)
        })
    },
};

/// The same on processors of Intel, which Bochs emulates: the machine is slow.
pub(crate) const VMX: Scenario = Scenario {
    name: "shared_confined_core_vmx",
    proves: "a lightweight kernel and a node that is confined by Intel's virtualization share a core",
    machine: Shape {
        cpus: 3,
        memory_mib: 1024,
        emulator: Emulator::Bochs,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    // Only by name, with 6.12 as base (`make soak PART=shared_confined_core_vmx`): it takes long.
    bases: &[],
    limit: Duration::from_secs(3600),
    soak_limit: Some(Duration::from_secs(7200)),
    // As the base's kernel under Bochs (`bochs.rs`).
    play: |context| works(context, "compute idle=halt clearcpuid=ht"),
};

/// The confined node, and the one that shares its core.
const HOST: &str = "confined";
const NAME: &str = "quiet";
/// The core.
const CORE: u32 = 2;
const CPU: &str = "2";

/// Plays it with a confined node with these kernel parameters.
fn works(context: &Context, parameters: &str) -> Result<(), Finding> {
    with_cleanup(|| {
        peer_image(context, "6.12")?;
        let before = Resources::now()?;
        share(&[])?.refused(1, &["core 2 belongs to no node", "confined"])?;
        let host = start_host(context, parameters)?;
        let alone = Resources::now()?;
        starts(&[])?;
        is_shared()?;
        both_work(&host)?;
        goes_on_meanwhile(&host)?;
        goes_on_while_paused(&host)?;
        answers_nmis()?;
        goes_on_without_supervisors()?;
        is_restarted()?;
        insula(&["stop", "--time", "60", NAME])?;
        insula(&["rm", NAME])?;
        crashes()?;
        hangs()?;
        host.assert_works()?;
        assert_unchanged(&alone)?;
        is_started_often(context.count(5, 100))?;
        host.assert_works()?;
        assert_unchanged(&alone)?;
        outlives_the_node(&host)?;
        assert_unchanged(&before)
    })
}

/// A confined node that computes on one core.
fn start_host(context: &Context, parameters: &str) -> Result<TestNode, Finding> {
    let image = peer_image(context, "6.12")?;
    let size = [&CONFINED[..], &["--cpu-list", CPU, "--memory", "256M"]].concat();
    let host = TestNode::start(HOST, &["--image", &image], &size, parameters)?;
    host.wait_until_ready()?;
    Ok(host)
}

fn share(more: &[&str]) -> Result<Answer, Finding> {
    share_core(CPU, more)
}

fn share_core(cpu: &str, more: &[&str]) -> Result<Answer, Finding> {
    let words = [
        "run",
        "--image",
        "lwk",
        "--share-core",
        cpu,
        "--share-by",
        "vmm",
        "--memory",
        "64M",
        "--name",
        NAME,
    ];
    try_insula(&[&words, more].concat())
}

fn starts(more: &[&str]) -> Result<(), Finding> {
    share(more)?.succeeded().map(drop)
}

fn logs(what: &str) -> Result<(), Finding> {
    wait_for(&format!("the log to contain `{what}`"), || {
        Ok(log(NAME)?.contains(what).then_some(()))
    })
}

/// A program of the node says a word.
fn echoes(word: &str) -> Result<(), Finding> {
    let echo = insula(&["exec", NAME, "--", "/bin/echo", word])?;
    assert_equal("a program", &echo, &format!("{word}\n"))
}

/// It stays the confined node's, and no third kernel gets it.
fn is_shared() -> Result<(), Finding> {
    logs("1 of 1 cores run")?;
    assert_equal("owner of the core", &Resources::now()?.owner(CORE), &"node")?;
    let again = [
        "run",
        "--image",
        "lwk",
        "--share-core",
        CPU,
        "--memory",
        "64M",
    ];
    try_insula(&again)?.refused(1, &["belongs to a node"])?;
    try_insula(&[&again[..], &["--share-by", "vmm"]].concat())?.refused(1, &["shared already"])
}

/// A program of the node computes, another makes calls, and the confined node goes on.
fn both_work(host: &TestNode) -> Result<(), Finding> {
    let count = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo $i";
    let counted = insula(&["exec", NAME, "--", "/bin/sh", "-c", count])?;
    assert_equal("the program's count", &counted.as_str(), &"20000\n")?;
    let version = std::fs::read_to_string("/proc/version")?;
    let read = insula(&["exec", NAME, "--", "/bin/cat", "/proc/version"])?;
    assert_equal("what it read", &read, &version)?;
    // It waits for nothing but its own timeouts.
    insula(&["exec", NAME, "--", "/bin/sleep", "0.3"])?;
    host.assert_works()
}

/// A program of the node that computes until it is killed, once it does.
fn endless() -> Result<Child, Finding> {
    let words = ["exec", NAME, "--", "/bin/sh", "-c", "while :; do :; done"];
    let program = command(&words).spawn()?;
    let link = format!("/proc/{}/exe", program.id());
    wait_for("the proxy to be the program's", || {
        Ok((!std::fs::read_link(&link)?.ends_with("insula")).then_some(()))
    })?;
    Ok(program)
}

/// While a program of the node computes for long, the confined node gets its share.
fn goes_on_meanwhile(host: &TestNode) -> Result<(), Finding> {
    let mut program = endless()?;
    let worked = host.assert_works();
    program.kill()?;
    program.wait()?;
    worked?;
    echoes("alive")
}

/// The monitor runs the one while it does not run the other.
fn goes_on_while_paused(host: &TestNode) -> Result<(), Finding> {
    insula(&["pause", HOST])?;
    let rounds = host.rounds()?;
    echoes("paused")?;
    // Its own timer's interrupts wait meanwhile.
    insula(&["exec", NAME, "--", "/bin/sleep", "0.3"])?;
    assert_equal("rounds of a paused node", &host.rounds()?, &rounds)?;
    insula(&["resume", HOST])?;
    host.assert_works()
}

/// An NMI for the confined node is not taken for one of those by which the other one is entered.
fn answers_nmis() -> Result<(), Finding> {
    for _ in 0..3 {
        echoes("rung")?;
        let lines = insula(&["backtrace", HOST])?;
        Finding::unless(lines.contains("NMI backtrace for cpu 0"), || lines.clone())?;
    }
    Ok(())
}

/// Each node's supervisor is killed, and it gets another one.
fn goes_on_without_supervisors() -> Result<(), Finding> {
    for node in [HOST, NAME] {
        supervisor_process::kill(node)?;
        insula(&["supervise", node])?;
        supervisor_process::wait_for_one(node)?;
        echoes(node)?;
    }
    Ok(())
}

/// The confined node, which has one core, gets another one and more memory, and gives them back.
fn goes_on_through_updates(_: &Context, host: &TestNode) -> Result<(), Finding> {
    let view = insula_json(&["inspect", &host.name])?;
    let cores = numbers(&view[0]["cpus"]);
    let [core] = cores[..] else {
        return Err(Finding::new(format!("the node has the cores {cores:?}")));
    };
    share_core(&core.to_string(), &[])?.succeeded()?;
    for (cpus, memory) in [("+1", "+128M"), ("-1", "-128M")] {
        insula(&["update", "--cpus", cpus, "--memory", memory, &host.name])?;
        echoes(cpus)?;
    }
    insula(&["rm", "--force", NAME]).map(drop)
}

fn is_restarted() -> Result<(), Finding> {
    insula(&["kill", NAME])?;
    insula(&["restart", NAME])?;
    logs("1 of 1 cores run")?;
    echoes("again")
}

/// Its panic ends the node alone, with its reason and the last lines of its log.
fn crashes() -> Result<(), Finding> {
    starts(&["--append", "crash"])?;
    wait_for("the crash to be seen", || {
        let view = insula_json(&["inspect", NAME])?;
        let ended = view[0]["state"].as_str() == Some("stopped");
        Ok((ended && view[0]["reason"].as_str() == Some("crashed")).then_some(()))
    })?;
    logs("panic requested on the command line")?;
    insula(&["rm", NAME]).map(drop)
}

/// A kernel that never leaves the core has it only for its share, and loses it.
fn hangs() -> Result<(), Finding> {
    starts(&["--append", "hang"])?;
    insula(&["kill", NAME])?;
    insula(&["rm", NAME]).map(drop)
}

fn is_started_often(count: u64) -> Result<(), Finding> {
    for _ in 0..count {
        starts(&["--core-share", "50"])?;
        echoes("often")?;
        insula(&["kill", NAME])?;
        insula(&["rm", NAME])?;
    }
    Ok(())
}

/// The confined node ends, and the other one has the core alone, which is returned with its end.
fn outlives_the_node(host: &TestNode) -> Result<(), Finding> {
    starts(&[])?;
    echoes("before")?;
    insula(&["kill", HOST])?;
    echoes("alone")?;
    let restarted = try_insula(&["restart", HOST])?;
    restarted.refused(1, &[])?;
    echoes("still alone")?;
    insula(&["stop", "--time", "60", NAME])?;
    insula(&["rm", NAME])?;
    insula(&["restart", HOST])?;
    host.assert_works()?;
    starts(&[])?;
    insula(&["rm", "--force", HOST])?;
    echoes("left behind")?;
    insula(&["rm", "--force", NAME]).map(drop)
}

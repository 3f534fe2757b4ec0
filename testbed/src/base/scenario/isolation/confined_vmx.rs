//! The monitor on processors of Intel, which Bochs emulates: a stock kernel works in it, and what it
//! does wrong ends it alone.
//!
//! The machine is slow and has three cores: of what `confined` shows, this shows what depends on the
//! kind of virtualization.

use std::time::Duration;

use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::{Attachments, NodeSpec, RunRequest, Source};
use serde_json::Value;

use crate::base::support::insula_command::{assert_equal, insula, text, try_insula, with_cleanup};
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "confined_vmx",
    proves: "Intel's virtualization confines a node as AMD's does",
    machine: Shape {
        cpus: 3,
        memory_mib: 1024,
        emulator: Emulator::Bochs,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    // Only by name, with 6.12 as base (`make soak PART=confined_vmx`): it takes long.
    bases: &[],
    limit: Duration::from_secs(3600),
    soak_limit: Some(Duration::from_secs(3600)),
    play,
};

const VERSION: &str = "6.12";
const SNAPSHOT: &str = "ready";

/// What the driver in the node is told to do, and what ends the node.
struct Attack {
    parameters: &'static str,
    reason: &'static str,
    kind: &'static str,
    subject: Option<&'static str>,
}

const ATTACKS: [Attack; 6] = [
    violation(
        "memory",
        "attack:memory,subject:0x100000,value:0xbad",
        "0x100000",
    ),
    violation("port", "attack:port,subject:0xb004,value:0x20", "0xb004"),
    violation("msr", "attack:msr,subject:0x79,value:0x1000", "0x79"),
    // INIT to core 0, which is the base's.
    violation(
        "interrupt",
        "attack:msr,subject:0x830,value:0x4500",
        "0x4500",
    ),
    // VMCALL, by its exit reason.
    violation("instruction", "attack:instruction,subject:8", "0x12"),
    Attack {
        parameters: "attack:fault",
        reason: "reset",
        kind: "reset",
        subject: None,
    },
];

const fn violation(kind: &'static str, parameters: &'static str, subject: &'static str) -> Attack {
    Attack {
        parameters,
        reason: "violation",
        kind,
        subject: Some(subject),
    }
}

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        peer_image(context, VERSION)?;
        let before = Resources::now()?;
        is_copied(context)?;
        assert_unchanged(&before)?;
        loses_memory(context)?;
        assert_unchanged(&before)?;
        works(context)?;
        assert_unchanged(&before)?;
        for attack in &ATTACKS {
            println!("{}", attack.parameters);
            ends(context, attack).map_err(|finding| finding.when(attack.parameters))?;
            assert_unchanged(&before)?;
        }
        Ok(())
    })
}

fn start(context: &Context, cpus: &str, task: &str) -> Result<TestNode, Finding> {
    let image = peer_image(context, VERSION)?;
    let size = [
        "--isolation",
        "vmm",
        "--cpus",
        cpus,
        "--memory",
        "192M",
        "--no-reboot",
    ];
    // As the base's kernel under Bochs (`bochs.rs`): cores do not wait by MWAIT, and have no threads.
    TestNode::start(
        "confined",
        &["--image", &image],
        &size,
        &format!("{task} idle=halt clearcpuid=ht"),
    )
}

fn monitor(node: &TestNode) -> Result<Value, Finding> {
    Ok(node.inspect()?["monitor"].clone())
}

/// It starts both cores, computes without exits but for CPUID, answers an NMI, is restarted in place, and
/// powers off by its button.
fn works(context: &Context) -> Result<(), Finding> {
    let node = start(context, "2", "compute")?;
    node.assert_ready(&context.release(VERSION)?)?;
    node.assert_works()?;
    let before = monitor(&node)?;
    node.assert_works()?;
    let after = monitor(&node)?;
    println!("exits: {}", after["exits"]);
    assert_equal("what ended it", &after["ended"], &Value::Null)?;
    for cause in ["msr", "port", "memory", "other"] {
        assert_equal(cause, &after["exits"][cause], &before["exits"][cause])?;
    }
    let lines = insula(&["backtrace", &node.name])?;
    Finding::unless(lines.contains("NMI backtrace for cpu 1"), || {
        format!("a core answers no NMI: {lines}")
    })?;
    insula(&["restart", &node.name])?;
    node.assert_ready(&context.release(VERSION)?)?;
    insula(&["stop", "--time", "60", &node.name])?;
    let reason = node.inspect()?["reason"].clone();
    assert_equal("reason", &text(&reason).as_str(), &"power-off")?;
    node.remove()
}

/// A paused node does nothing. It goes on afterwards, and so does a copy of it, each with the same memory.
///
/// The machine has no sockets, so nobody could name the copy: it is started without the command.
fn is_copied(context: &Context) -> Result<(), Finding> {
    let original = start(context, "1", "compute")?;
    original.assert_ready(&context.release(VERSION)?)?;
    original.assert_works()?;
    insula(&["pause", &original.name])?;
    let rounds = original.rounds()?;
    insula(&["snapshot", &original.name, SNAPSHOT])?;
    assert_equal("rounds while it is paused", &original.rounds()?, &rounds)?;
    insula(&["resume", &original.name])?;
    let copy = original.copied_as("copy");
    let supervisor = start_copy(&copy.name)?;
    copy.assert_works()?;
    original.assert_works()?;
    insula(&["pause", &copy.name])?;
    insula(&["resume", &copy.name])?;
    copy.assert_works()?;
    let sums = [&original, &copy].map(checksum);
    let [Some(one), Some(other)] = sums.map(|sum| sum.ok().flatten()) else {
        return Err(Finding::new("a node has no checksum"));
    };
    assert_equal("checksum of the copy's memory", &other, &one)?;
    let view = copy.inspect()?;
    println!("exits of the copy: {}", view["monitor"]["exits"]);
    println!("its own memory: {}", view["own_memory_bytes"]);
    assert_equal("what ended it", &view["monitor"]["ended"], &Value::Null)?;
    drop(supervisor);
    insula(&["image", "rm", SNAPSHOT])?;
    copy.remove()?;
    original.remove()
}

/// Starts a copy, and returns the descriptor by which this process supervises it.
fn start_copy(name: &str) -> Result<insula_driver::Node, Finding> {
    let name: Name = name.parse()?;
    let image: Name = SNAPSHOT.parse()?;
    let spec = NodeSpec {
        image: Some(image.clone()),
        ..NodeSpec::default()
    };
    let request = RunRequest {
        cores: spec.cores(),
        spec,
        source: Source::Image(image),
        name: Some(name),
        attachments: Attachments::default(),
        described: None,
        remove: false,
        is_created: false,
        is_attached: false,
    };
    let driver = Driver::open()?;
    let (_, node) = insula_node::start(&driver, &Root::default(), &request, 0)?;
    Ok(node)
}

fn checksum(node: &TestNode) -> Result<Option<String>, Finding> {
    let line = node.last_line("compute rounds=")?;
    Ok(line.and_then(|line| Some(line.split_once("sum=")?.1.to_owned())))
}

/// A driver goes on writing to memory that its kernel has given back, by a translation that its core
/// remembers.
fn loses_memory(context: &Context) -> Result<(), Finding> {
    let node = start(context, "1", "late attack=attack:late")?;
    node.wait_for_line("attacks")?;
    insula(&["update", "--memory", "+128M", &node.name])?;
    let shown = node.inspect()?;
    let added = shown["memory"].as_array().and_then(|chunks| chunks.last());
    let start = added.and_then(|chunk| chunk["start"].as_u64());
    let subject = format!("{:#x}", start.unwrap_or_default());
    // The node may end before the command does.
    let _ = try_insula(&["update", "--memory", "-128M", &node.name])?;
    let ended = node.wait_for_end()?["monitor"]["ended"].clone();
    assert_equal("what ended it", &text(&ended["kind"]).as_str(), &"memory")?;
    assert_equal("subject", &text(&ended["subject"]), &subject)?;
    node.remove()
}

/// The attack ends the node, and tells what it was.
fn ends(context: &Context, attack: &Attack) -> Result<(), Finding> {
    let node = start(
        context,
        "1",
        &format!("attack attack={}", attack.parameters),
    )?;
    let view = node.wait_for_end()?;
    let ended = &view["monitor"]["ended"];
    assert_equal("reason", &text(&view["reason"]).as_str(), &attack.reason)?;
    assert_equal(
        "what ended it",
        &text(&ended["kind"]).as_str(),
        &attack.kind,
    )?;
    if let Some(subject) = attack.subject {
        assert_equal("subject", &text(&ended["subject"]).as_str(), &subject)?;
    }
    node.remove()
}

//! The monitor on processors of Intel, which Bochs emulates: a stock kernel works in it, and what it
//! does wrong ends it alone.
//!
//! The machine is slow and has three cores: of what `confined` shows, this shows what depends on the
//! kind of virtualization.

use std::time::Duration;

use serde_json::Value;

use crate::base::support::insula_command::{assert_equal, insula, text, with_cleanup};
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
    // As the base's kernel under Bochs (`bochs.rs`): cores do not wait by MWAIT, have no threads and no
    // XSAVE.
    TestNode::start(
        "confined",
        &["--image", &image],
        &size,
        &format!("{task} idle=halt clearcpuid=ht noxsave"),
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

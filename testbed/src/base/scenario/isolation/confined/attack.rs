//! Attacks by a driver in a confined node's kernel (`insula_hostile.c`).

use std::fs::{self, File};
use std::io::Read;

use super::super::attacker;
use super::super::neighbour::Neighbour;
use super::ended;
use crate::base::support::insula_command::{assert_equal, insula, text, wait_for};
use crate::base::support::nodes::test_node::{TestNode, path};
use crate::base::{Context, Finding};

/// Seeds of random attacks in a long run.
const SEEDS: u64 = 200;

/// Bytes at the beginning of a dump that hold its notes.
const NOTES: usize = 64 << 10;

/// What the driver is told to do, what ends the node, and the subject that is told.
struct Attack {
    parameters: String,
    reason: &'static str,
    kind: &'static str,
    subject: Option<u64>,
}

impl Attack {
    fn new(kind: &'static str, attack: &str, subject: u64, value: u64) -> Self {
        Self {
            parameters: format!("attack:{attack},subject:{subject:#x},value:{value:#x}"),
            reason: "violation",
            kind,
            subject: Some(subject),
        }
    }

    /// The node is reset, as it may.
    fn reset(attack: &str, subject: u64, value: u64) -> Self {
        Self {
            reason: "reset",
            subject: None,
            ..Self::new("reset", attack, subject, value)
        }
    }

    /// The interrupt command register is written.
    fn interrupt(command: u64) -> Self {
        Self {
            subject: Some(command),
            ..Self::new("interrupt", "msr", 0x830, command)
        }
    }

    /// An instruction of the driver's list, and its exit code.
    fn instruction(number: u64, exit_code: u64) -> Self {
        Self {
            subject: Some(exit_code),
            ..Self::new("instruction", "instruction", number, 0)
        }
    }
}

/// Each ends the node, tells what it was, and harms nobody else.
pub(super) fn attacks(context: &Context, neighbour: &Neighbour) -> Result<(), Finding> {
    let canary = neighbour.canary.address;
    let variants = context.select(Vec::new(), variants(canary));
    dump_names_the_function(context, &Attack::new("memory", "memory", canary, 0xbad))?;
    for attack in each_kind().into_iter().chain(variants) {
        println!("{}", attack.parameters);
        play(context, &attack).map_err(|finding| finding.when(&attack.parameters))?;
        neighbour.assert_unharmed()?;
    }
    for seed in 0..context.count(1, SEEDS) {
        random(context, seed).map_err(|finding| finding.when(&format!("seed {seed}")))?;
        neighbour.assert_unharmed()?;
    }
    Ok(())
}

/// One attack of each other kind that is told.
fn each_kind() -> Vec<Attack> {
    vec![
        // The machine's power-off.
        Attack::new("port", "port", 0x604, 0x2000),
        // Where VMRUN would save the monitor's registers.
        Attack::new("msr", "msr", 0xc001_0117, 0x1000),
        // INIT to core 0, which is the base's.
        Attack::interrupt(0x4500),
        // VMRUN.
        Attack::instruction(0, 0x80),
        Attack::reset("fault", 0, 0),
    ]
}

/// The same in other ways, for a long run.
fn variants(canary: u64) -> Vec<Attack> {
    vec![
        Attack::new("memory", "read", canary + 0x1000, 0),
        // The registers of local APICs, by which it could interrupt any core.
        Attack::new("memory", "memory", 0xfee0_0300, 0),
        Attack::reset("port", 0xcf9, 6),
        // Microcode.
        Attack::new("msr", "msr", 0x79, 0x1000),
        // NMI to core 0, and INIT by the function of the kernel.
        Attack::interrupt(0x4400),
        Attack {
            subject: Some(0x1_0000_4500),
            ..Attack::new("interrupt", "ipi", 1, 0x4500)
        },
        // CLGI.
        Attack::instruction(4, 0x85),
    ]
}

fn play(context: &Context, attack: &Attack) -> Result<(), Finding> {
    attacked(context, attack)?.0.remove()
}

/// Starts a node that attacks, and is ended. Returns it, and the function that is told to have done it.
fn attacked(context: &Context, attack: &Attack) -> Result<(TestNode, String), Finding> {
    let node = attacker::start(context, "vmm", &attack.parameters)?;
    let told = ended(&node, attack.reason)?;
    assert_equal("what ended it", &text(&told["kind"]).as_str(), &attack.kind)?;
    if let Some(subject) = attack.subject {
        assert_equal("subject", &text(&told["subject"]), &format!("{subject:#x}"))?;
    }
    let symbol = text(&told["symbol"]);
    if attack.reason == "violation" {
        is_the_function(attack.kind, &symbol)?;
    }
    Ok((node, symbol))
}

/// The function that did it is named, by the symbols of the node's kernel.
fn is_the_function(kind: &str, symbol: &str) -> Result<(), Finding> {
    let is_named = match kind {
        // A function of the kernel writes registers for the driver.
        "msr" | "interrupt" => symbol.starts_with("native_write_msr_safe+0x"),
        // Most functions of the driver are inlined into that by which it is loaded, which has two names.
        _ => symbol.contains("+0x") && symbol.ends_with("[insula_hostile]"),
    };
    Finding::unless(is_named, || format!("the function is told as {symbol:?}"))
}

/// The dump of a node that was ended for an attack names the function, too.
fn dump_names_the_function(context: &Context, attack: &Attack) -> Result<(), Finding> {
    let (node, symbol) = attacked(context, attack)?;
    let dump = path(&context.results().join("violation.core"));
    insula(&["dump", attacker::NAME, "--output", &dump])?;
    let mut notes = vec![0; NOTES];
    File::open(&dump)?.read_exact(&mut notes)?;
    fs::remove_file(&dump)?;
    let holds = |text: &str| {
        notes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    Finding::unless(holds("INSULA-MONITOR") && holds(&symbol), || {
        format!("the dump does not name {symbol}")
    })?;
    node.remove()
}

/// Many attacks by chance: one of them ends the node, or it survives all.
fn random(context: &Context, seed: u64) -> Result<(), Finding> {
    let node = attacker::start(context, "vmm", &format!("attack:random,seed:{seed}"))?;
    let end = wait_for("the end of the attacks", || {
        let view = node.inspect()?;
        let survived = node.last_line("survived")?.is_some();
        Ok((survived || view["state"] == "stopped").then(|| view["monitor"]["ended"].clone()))
    })?;
    println!("random attacks with the seed {seed}: {end}");
    node.remove()
}

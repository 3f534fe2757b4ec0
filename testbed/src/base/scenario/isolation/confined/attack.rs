//! Attacks by a driver in a confined node's kernel (`insula_hostile.c`).

use insula_abi::{GRANULE, NUMA_ANY, Request};
use insula_driver::{Driver, Mapping, Memory};

use super::ended;
use crate::base::support::insula_command::{assert_equal, text, wait_for};
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::{Context, Finding};

/// Seeds of random attacks in a long run.
const SEEDS: u64 = 200;

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
pub(super) fn attacks(context: &Context) -> Result<(), Finding> {
    let driver = Driver::open()?;
    let canary = Canary::place(&driver)?;
    let neighbour = neighbour(context)?;
    for attack in list(canary.address) {
        println!("{}", attack.parameters);
        play(context, &attack).map_err(|finding| finding.when(&attack.parameters))?;
        canary.assert_alive()?;
        neighbour.assert_works()?;
    }
    for seed in 0..context.count(1, SEEDS) {
        random(context, seed).map_err(|finding| finding.when(&format!("seed {seed}")))?;
        canary.assert_alive()?;
        neighbour.assert_works()?;
    }
    neighbour.remove()
}

fn list(canary: u64) -> Vec<Attack> {
    vec![
        Attack::new("memory", "memory", canary, 0xbad),
        Attack::new("memory", "read", canary + 0x1000, 0),
        // The registers of local APICs, by which it could interrupt any core.
        Attack::new("memory", "memory", 0xfee0_0300, 0),
        // The machine's power-off.
        Attack::new("port", "port", 0x604, 0x2000),
        Attack::reset("port", 0xcf9, 6),
        // Where VMRUN would save the monitor's registers; microcode.
        Attack::new("msr", "msr", 0xc001_0117, 0x1000),
        Attack::new("msr", "msr", 0x79, 0x1000),
        // INIT and NMI to core 0, which is the base's.
        Attack::interrupt(0x4500),
        Attack::interrupt(0x4400),
        // VMRUN, CLGI.
        Attack::instruction(0, 0x80),
        Attack::instruction(4, 0x85),
        Attack::reset("fault", 0, 0),
    ]
}

fn play(context: &Context, attack: &Attack) -> Result<(), Finding> {
    let node = attacker(context, &attack.parameters)?;
    let told = ended(&node, attack.reason)?;
    assert_equal("what ended it", &text(&told["kind"]).as_str(), &attack.kind)?;
    if let Some(subject) = attack.subject {
        assert_equal("subject", &text(&told["subject"]), &format!("{subject:#x}"))?;
    }
    node.remove()
}

/// Many attacks by chance: one of them ends the node, or it survives all.
fn random(context: &Context, seed: u64) -> Result<(), Finding> {
    let node = attacker(context, &format!("attack:random,seed:{seed}"))?;
    let end = wait_for("the end of the attacks", || {
        let view = node.inspect()?;
        let survived = node.last_line("survived")?.is_some();
        Ok((survived || view["state"] == "stopped").then(|| view["monitor"]["ended"].clone()))
    })?;
    println!("random attacks with the seed {seed}: {end}");
    node.remove()
}

fn attacker(context: &Context, parameters: &str) -> Result<TestNode, Finding> {
    let image = peer_image(context, "6.12")?;
    let size = ["--isolation", "vmm", "--memory", "192M", "--no-reboot"];
    let task = format!("attack attack={parameters}");
    TestNode::start(super::NAME, &["--image", &image], &size, &task)
}

/// A trusted node that computes.
fn neighbour(context: &Context) -> Result<TestNode, Finding> {
    let image = peer_image(context, "6.12")?;
    let size = ["--memory", "192M"];
    let node = TestNode::start("neighbour", &["--image", &image], &size, "compute")?;
    node.wait_until_ready()?;
    Ok(node)
}

/// Memory of the base whose content is known.
struct Canary {
    memory: Mapping,
    _object: Memory,
    /// Its physical address.
    address: u64,
}

impl Canary {
    const BYTE: u8 = 0x5a;

    fn place(driver: &Driver) -> Result<Self, Finding> {
        let object = driver.create_memory()?;
        object.grow(&Request {
            size: GRANULE,
            min_phys: 0,
            max_phys: 0,
            chunk_max: 0,
            numa_node: NUMA_ANY,
            flags: 0,
        })?;
        let mut memory = object.map()?;
        memory.write(0, &vec![Self::BYTE; GRANULE as usize])?;
        let address = object.chunks()?[0].start;
        Ok(Self {
            memory,
            _object: object,
            address,
        })
    }

    fn assert_alive(&self) -> Result<(), Finding> {
        let mut bytes = vec![0; GRANULE as usize];
        self.memory.read(0, &mut bytes)?;
        let changed = bytes.iter().position(|&byte| byte != Self::BYTE);
        assert_equal("first changed byte of the base's memory", &changed, &None)
    }
}

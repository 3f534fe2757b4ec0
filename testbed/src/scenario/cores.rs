//! Cores between the base and nodes: what comes at the wrong moment does no harm.

use std::fs;
use std::mem::offset_of;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use insula::driver::{CallError, Channel, Driver, Node};
use insula::name::Name;
use insula_abi::channel::{Channels, DOORBELL_APIC_SHIFT, DOORBELL_VALID, End, Ends, SLOTS_MIN};
use insula_abi::{Cpu, GRANULE, Reason};
use nix::errno::Errno;

use super::fuzz_targets::SUPPLY;
use super::hold::Hold;
use super::holdings::online;
use super::idle_node::IdleMemory;
use super::insula_command::{ask, assert_equal, insula, wait_for};
use super::test_node::{TestNode, add_unpacked_image};
use super::{Context, Finding, Module, Scenario, Shape};
use crate::kernels::Flavour;
use crate::machine::Wish;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "cores",
    proves: "a core that comes back is not rung or lost, whatever its node told and who else switches it",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(240),
    soak_limit: None,
    play,
};

const NODE: &str = "idle";
/// Where its channels are in its memory.
const AREA: u64 = GRANULE / 2;
/// That of its only channel's end which tells of its doorbell.
const DOORBELL: u64 =
    AREA + PAGE + offset_of!(Ends, node) as u64 + offset_of!(End, doorbell) as u64;
const PAGE: u64 = 4096;
const SWITCH: &str = "/sys/devices/system/cpu/cpu3/online";
/// The core that comes back.
const CORE: u32 = 3;
/// At which no interrupt of the base is, nor of a node's that does nothing.
const VECTOR: u64 = 0xd5;
/// What may be given to devices by every kernel: the vectors above them are the kernel's own from
/// 0xeb or 0xec on, depending on its version.
const DEVICES: std::ops::Range<u64> = 0x21..0xeb;
const SYSTEM: std::ops::Range<u64> = 0xec..0x100;
const EXCEPTIONS: std::ops::Range<u64> = 0..0x20;
/// The system call of programs of 32 bits.
const SYSTEM_CALL: u64 = 0x80;
/// How long a core is given to come back too early.
const EARLY: Duration = Duration::from_secs(5);

fn play(context: &Context) -> Result<(), Finding> {
    // On a core that nothing else here takes: it is parked while the next ones are played.
    let waiting = Small::create("waiting", &[1])?;
    println!("{}", Wish::MachineCheck { core: 1 }.to_line());
    only_for_devices().map_err(|finding| finding.when("vectors"))?;
    late(&[CORE], stop).map_err(|finding| finding.when("a ring while the node ends"))?;
    // Where somebody is held up, the others need a core.
    drop(waiting);
    moved_doorbell().map_err(|finding| finding.when("a doorbell that moves"))?;
    late(&[2, CORE], shrink).map_err(|finding| finding.when("a ring while the node shrinks"))?;
    switched_off_by_another().map_err(|finding| finding.when("switched off by another"))?;
    switched_on_by_another().map_err(|finding| finding.when("switched on by another"))?;
    locked_down(context).map_err(|finding| finding.when("lockdown"))
}

/// A node that does nothing, with room for a channel.
struct Small {
    node: Node,
    memory: IdleMemory,
}

impl Small {
    fn create(name: &str, cpus: &[u32]) -> Result<Self, Finding> {
        let driver = Driver::open()?;
        let memory = IdleMemory::take(&driver, &SUPPLY)?;
        let name: Name = name.parse()?;
        let node = driver.create_node(&name.to_abi(), &[], cpus, &memory.object)?;
        Ok(Self { node, memory })
    }

    fn start(&self) -> Result<(), CallError> {
        self.node.start(&self.memory.beginning())
    }

    fn remove(&self) -> Result<(), Finding> {
        if let Err(error) = self.node.stop(Reason::KILLED)
            && error.errno != Errno::EALREADY
        {
            return Err(error.into());
        }
        Ok(self.node.remove()?)
    }
}

/// One that has its channel, and runs.
struct Ringable {
    small: Small,
    channel: Channel,
    /// The last of its cores.
    core: Cpu,
}

impl Ringable {
    fn start(cpus: &[u32]) -> Result<Self, Finding> {
        let small = Small::create(NODE, cpus)?;
        small.node.lay_out_channels(Channels {
            start: small.memory.start + AREA,
            count: 1,
            slots: SLOTS_MIN,
        })?;
        small.start()?;
        let channel = small.node.open_channel(0)?;
        let (_, cores) = small.node.info()?;
        let core = cores.last().copied();
        let core = core.ok_or_else(|| Finding::new("a node without cores"))?;
        Ok(Self {
            small,
            channel,
            core,
        })
    }

    /// Has the base ring what the node tells.
    fn ring(&self, vector: u64) -> Result<(), Finding> {
        self.tell(self.core, vector)?;
        Ok(self.channel.ring()?)
    }

    /// What the node tells: where it is to be rung.
    fn tell(&self, core: Cpu, vector: u64) -> Result<(), Finding> {
        let apic_id = u64::from(core.apic_id);
        let word = DOORBELL_VALID | apic_id << DOORBELL_APIC_SHIFT | vector;
        self.small.memory.set(DOORBELL, word)
    }

    fn remove(self) -> Result<(), Finding> {
        drop(self.channel);
        self.small.remove()
    }
}

/// Of all vectors that a node can tell, only those are used at which a core of Linux would find at
/// worst an interrupt that nobody waits for.
fn only_for_devices() -> Result<(), Finding> {
    let node = Ringable::start(&[CORE])?;
    for vector in 0..0x100 {
        node.ring(vector)?;
    }
    let came = node.small.memory.pending()?;
    let which = |range: std::ops::Range<u64>| range.filter(|vector| came.contains(vector));
    let refused: Vec<_> = which(EXCEPTIONS).chain(which(SYSTEM)).collect();
    assert_equal("vectors that should not have come", &refused, &vec![])?;
    let usable: Vec<_> = DEVICES.filter(|&vector| vector != SYSTEM_CALL).collect();
    let came: Vec<_> = which(DEVICES).collect();
    assert_equal("vectors that came", &came, &usable)?;
    node.remove()
}

/// Somebody has read where to ring, and is then held up; meanwhile the doorbell moves to another core,
/// as when the node switches one off. The ring must come by the new word.
fn moved_doorbell() -> Result<(), Finding> {
    let node = Ringable::start(&[2, CORE])?;
    let (_, cores) = node.small.node.info()?;
    let hold = Hold::of("insula_start_interrupt")?;
    std::thread::scope(|scope| {
        let ringing = scope.spawn(|| node.ring(VECTOR));
        hold.wait()?;
        // The one that executes, and tells what has come.
        node.tell(cores[0], VECTOR)?;
        hold.release()?;
        ringing
            .join()
            .map_err(|_| Finding::new("a thread failed"))?
    })?;
    let came = node.small.memory.pending()?;
    assert_equal("the ring came", &came.contains(&VECTOR), &true)?;
    drop(hold);
    node.remove()
}

/// Takes [`CORE`] from a node.
type Take = fn(&Node) -> Result<(), CallError>;

fn stop(node: &Node) -> Result<(), CallError> {
    node.stop(Reason::KILLED)
}

fn shrink(node: &Node) -> Result<(), CallError> {
    node.shrink(&[CORE], 0)
}

/// Somebody has seen that the core may be rung, and is then held up. Meanwhile the core is taken from
/// the node. The base must not have it before the ring has come.
fn late(cpus: &[u32], take: Take) -> Result<(), Finding> {
    let node = Ringable::start(cpus)?;
    let hold = Hold::of("insula_start_interrupt")?;
    std::thread::scope(|scope| {
        let ringing = scope.spawn(|| node.ring(VECTOR));
        hold.wait()?;
        let (taken, wait) = mpsc::channel();
        let owner = &node.small.node;
        let taking = scope.spawn(move || {
            let result = take(owner);
            let _ = taken.send(());
            result
        });
        let _ = wait.recv_timeout(EARLY);
        hold.release()?;
        let failed = |_| Finding::new("a thread failed");
        ringing.join().map_err(failed)??;
        Ok::<_, Finding>(taking.join().map_err(failed)??)
    })?;
    assert_equal("cores", &online()?.contains('3'), &true)?;
    drop(hold);
    node.remove()?;
    assert_not_logged("No irq handler for vector")
}

/// A core that somebody else switches off while it is being taken is not the node's, and stays off.
fn switched_off_by_another() -> Result<(), Finding> {
    let driver = Driver::open()?;
    let memory = IdleMemory::take(&driver, &SUPPLY)?;
    let name = NODE.parse::<Name>()?.to_abi();
    let hold = Hold::asleep("remove_cpu")?;
    let refused = std::thread::scope(|scope| {
        let create = || {
            driver
                .create_node(&name, &[], &[CORE], &memory.object)
                .err()
        };
        let creating = scope.spawn(create);
        hold.wait()?;
        fs::write(SWITCH, "0")?;
        hold.release()?;
        creating.join().map_err(|_| Finding::new("a thread failed"))
    })?;
    let errno = refused.map(|error| error.errno);
    assert_equal("the refusal", &errno, &Some(Errno::ENODEV))?;
    assert_equal("cores", &online()?.as_str(), &"0-2")?;
    Ok(fs::write(SWITCH, "1")?)
}

/// One that somebody else switches on as it comes back has come back.
fn switched_on_by_another() -> Result<(), Finding> {
    let node = Ringable::start(&[CORE])?;
    let hold = Hold::asleep("add_cpu")?;
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| stop(&node.small.node));
        hold.wait()?;
        fs::write(SWITCH, "1")?;
        hold.release()?;
        let failed = |_| Finding::new("a thread failed");
        Ok::<_, Finding>(stopping.join().map_err(failed)??)
    })?;
    assert_equal("cores", &online()?.as_str(), &"0-3")?;
    drop(hold);
    node.remove()?;
    assert_not_logged("does not come online")
}

/// Where the kernel is locked down, until the next boot.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// A locked down base starts no node, as it starts no unsigned kernel by kexec: neither a new one nor
/// one that is there already. What runs goes on.
fn locked_down(context: &Context) -> Result<(), Finding> {
    add_unpacked_image(context, "debian", "6.12")?;
    let size = ["--cpu-list", "2", "--memory", "256M"];
    let stopped = TestNode::start("stopped", &["--image", "debian"], &size, "idle")?;
    insula(&["kill", &stopped.name])?;
    let created = Small::create("created", &[CORE])?;
    let running = Small::create("running", &[1])?;
    running.start()?;
    fs::write(LOCKDOWN, "integrity")?;

    let why = ["locked down", "Secure Boot", LOCKDOWN];
    let run = [
        "run",
        "--image",
        "debian",
        "--cpu-list",
        "2",
        "--memory",
        "256M",
    ];
    ask(&run)?.refused(1, &why)?;
    ask(&["restart", &stopped.name])?.refused(1, &why)?;
    let started = created.start().err();
    let errno = started.map(|error| error.errno);
    assert_equal("the refusal of a start", &errno, &Some(Errno::EPERM))?;
    let check = ask(&["machine", "check"])?;
    Finding::unless(check.status == Some(1), || {
        format!("`machine check` finds a locked down base good: {check:?}")
    })?;
    let counted = running.memory.count()?;
    let counts = || Ok((running.memory.count()? != counted).then_some(()));
    wait_for("a node to go on", counts)?;
    running.remove()?;
    drop(created);
    stopped.remove()?;
    insula(&["image", "rm", "debian"]).map(drop)
}

fn assert_not_logged(words: &str) -> Result<(), Finding> {
    let output = Command::new("dmesg").output()?;
    let log = String::from_utf8_lossy(&output.stdout);
    let found = log.lines().find(|line| line.contains(words));
    Finding::unless(found.is_none(), || format!("the base logged: {found:?}"))
}

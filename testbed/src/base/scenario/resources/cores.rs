//! Cores that move between base and nodes, with events at the worst moment.

use std::fs;
use std::mem::offset_of;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use insula_abi::channel::{
    Channels, DOORBELL_APIC_SHIFT, DOORBELL_VALID, EndpointState, Endpoints, SLOTS_MIN,
};
use insula_abi::{Cpu, GRANULE, Reason, Request};
use insula_driver::name::Name;
use insula_driver::{CallError, Channel, Driver, Node};
use nix::errno::Errno;

use crate::base::support::hold::Hold;
use crate::base::support::insula_command::{assert_equal, insula, try_insula};
use crate::base::support::nodes::idle_node::{IdleMemory, SUPPLY};
use crate::base::support::nodes::test_node::{TestNode, add_unpacked_image};
use crate::base::support::resources::online;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::HostRequest;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "cores",
    proves: "a returned core gets no late doorbell and is not lost, whatever its node wrote and who else switches it",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(240),
    soak_limit: None,
    play,
};

const NODE: &str = "idle";
/// Offset of its channels in its memory.
const AREA: u64 = GRANULE / 2;
/// Offset of the doorbell's address in its only endpoint.
const DOORBELL: u64 =
    AREA + PAGE + offset_of!(Endpoints, node) as u64 + offset_of!(EndpointState, doorbell) as u64;
const PAGE: u64 = 4096;
const SWITCH: &str = "/sys/devices/system/cpu/cpu3/online";
/// Core that is returned to the base.
const CORE: u32 = 3;
/// Vector that neither the base nor an idle node uses.
const VECTOR: u64 = 0xd5;
/// Vectors that every kernel may give to devices: the vectors above are the kernel's own from 0xeb
/// or 0xec on, depending on its version.
const DEVICES: std::ops::Range<u64> = 0x21..0xeb;
const SYSTEM: std::ops::Range<u64> = 0xec..0x100;
const EXCEPTIONS: std::ops::Range<u64> = 0..0x20;
/// Vector of 32-bit system calls.
const SYSTEM_CALL: u64 = 0x80;
/// Time in which a core could be returned too early.
const EARLY: Duration = Duration::from_secs(5);

fn play(context: &Context) -> Result<(), Finding> {
    // On a core that no other node here uses: it is parked during the next parts.
    let waiting = IdleNode::create("waiting", &[1])?;
    println!("{}", HostRequest::MachineCheck { core: 1 }.to_line());
    only_for_devices().map_err(|finding| finding.when("vectors"))?;
    late_doorbell(&[CORE], stop)
        .map_err(|finding| finding.when("a doorbell while the node ends"))?;
    // While a function is held, the others need a core.
    drop(waiting);
    moved_doorbell().map_err(|finding| finding.when("a doorbell that moves"))?;
    late_doorbell(&[2, CORE], shrink)
        .map_err(|finding| finding.when("a doorbell while the node shrinks"))?;
    late_doorbell_to_pool().map_err(|finding| finding.when("a doorbell to a core of the pool"))?;
    switched_off_concurrently().map_err(|finding| finding.when("switched off concurrently"))?;
    switched_on_concurrently().map_err(|finding| finding.when("switched on concurrently"))?;
    locked_down(context).map_err(|finding| finding.when("lockdown"))
}

/// An idle node, with room for a channel.
struct IdleNode {
    node: Node,
    memory: IdleMemory,
}

impl IdleNode {
    fn create(name: &str, cpus: &[u32]) -> Result<Self, Finding> {
        let driver = Driver::open()?;
        let memory = IdleMemory::allocate(&driver, &SUPPLY)?;
        let name: Name = name.parse()?;
        let node = driver.create_node(&name.to_abi(), &[], cpus, &memory.object)?;
        Ok(Self { node, memory })
    }

    fn start(&self) -> Result<(), CallError> {
        self.node.start(&self.memory.start_parameters())
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

/// A running node with its channel.
struct DoorbellNode {
    idle: IdleNode,
    channel: Channel,
    /// Last of its cores.
    core: Cpu,
}

impl DoorbellNode {
    fn start(cpus: &[u32]) -> Result<Self, Finding> {
        let idle = IdleNode::create(NODE, cpus)?;
        idle.node.lay_out_channels(Channels {
            start: idle.memory.start + AREA,
            count: 1,
            slots: SLOTS_MIN,
        })?;
        idle.start()?;
        let channel = idle.node.open_channel(0)?;
        let (_, cores) = idle.node.info()?;
        let core = cores.last().copied();
        let core = core.ok_or_else(|| Finding::new("a node without cores"))?;
        Ok(Self {
            idle,
            channel,
            core,
        })
    }

    /// Has the base ring the doorbell with this vector.
    fn ring(&self, vector: u64) -> Result<(), Finding> {
        self.write_doorbell(self.core, vector)?;
        Ok(self.channel.ring()?)
    }

    /// Writes the address of the node's doorbell: core and vector.
    fn write_doorbell(&self, core: Cpu, vector: u64) -> Result<(), Finding> {
        let apic_id = u64::from(core.apic_id);
        let word = DOORBELL_VALID | apic_id << DOORBELL_APIC_SHIFT | vector;
        self.idle.memory.set(DOORBELL, word)
    }

    fn remove(self) -> Result<(), Finding> {
        drop(self.channel);
        self.idle.remove()
    }
}

/// Only vectors of devices are used, of all those that a node can write: there Linux would at worst
/// find an unexpected interrupt.
fn only_for_devices() -> Result<(), Finding> {
    let node = DoorbellNode::start(&[CORE])?;
    for vector in 0..0x100 {
        node.ring(vector)?;
    }
    let pending = node.idle.memory.pending()?;
    let which = |range: std::ops::Range<u64>| range.filter(|vector| pending.contains(vector));
    let refused: Vec<_> = which(EXCEPTIONS).chain(which(SYSTEM)).collect();
    assert_equal("vectors that must not be used", &refused, &vec![])?;
    let usable: Vec<_> = DEVICES.filter(|&vector| vector != SYSTEM_CALL).collect();
    let pending: Vec<_> = which(DEVICES).collect();
    assert_equal("vectors that are used", &pending, &usable)?;
    node.remove()
}

/// A sender has read the doorbell's address and is then held; meanwhile the doorbell moves to
/// another core, as when the node takes one offline. The doorbell must be sent to the new address.
fn moved_doorbell() -> Result<(), Finding> {
    let node = DoorbellNode::start(&[2, CORE])?;
    let (_, cores) = node.idle.node.info()?;
    let hold = Hold::of("insula_start_interrupt")?;
    std::thread::scope(|scope| {
        let ringing = scope.spawn(|| node.ring(VECTOR));
        hold.wait()?;
        // The core that executes the node's code, and reports interrupts.
        node.write_doorbell(cores[0], VECTOR)?;
        hold.release()?;
        ringing
            .join()
            .map_err(|_| Finding::new("a thread failed"))?
    })?;
    let pending = node.idle.memory.pending()?;
    assert_equal("the doorbell arrived", &pending.contains(&VECTOR), &true)?;
    drop(hold);
    node.remove()
}

/// Takes [`CORE`] from a node.
type TakeCore = fn(&Node) -> Result<(), CallError>;

fn stop(node: &Node) -> Result<(), CallError> {
    node.stop(Reason::KILLED)
}

fn shrink(node: &Node) -> Result<(), CallError> {
    node.shrink(&[CORE], 0)
}

/// The base must not get a core before an interrupt to it has been sent.
fn late_doorbell(cpus: &[u32], take: TakeCore) -> Result<(), Finding> {
    let node = take_during_ring(cpus, take)?;
    assert_equal("cores", &online()?.contains('3'), &true)?;
    node.remove()?;
    assert_not_logged("No irq handler for vector")
}

/// Nor must the pool get it, from which another node could start it. Linux waits for RCU readers
/// before it brings a core online; here only the module waits for them.
fn late_doorbell_to_pool() -> Result<(), Finding> {
    let driver = Driver::open()?;
    let no_memory = Request { size: 0, ..SUPPLY };
    driver.reserve(&[CORE], no_memory)?;
    take_during_ring(&[CORE], stop)?.remove()?;
    Ok(driver.release()?)
}

/// A sender has checked that the core may be sent an interrupt, and is then held. Meanwhile the
/// core is taken from the node, which must not succeed before the interrupt has been sent.
fn take_during_ring(cpus: &[u32], take: TakeCore) -> Result<DoorbellNode, Finding> {
    let node = DoorbellNode::start(cpus)?;
    let hold = Hold::of("insula_start_interrupt")?;
    std::thread::scope(|scope| {
        let ringing = scope.spawn(|| node.ring(VECTOR));
        hold.wait()?;
        let (taken, wait) = mpsc::channel();
        let owner = &node.idle.node;
        let taking = scope.spawn(move || {
            let result = take(owner);
            let _ = taken.send(());
            result
        });
        let is_early = wait.recv_timeout(EARLY).is_ok();
        hold.release()?;
        let failed = |_| Finding::new("a thread failed");
        ringing.join().map_err(failed)??;
        taking.join().map_err(failed)??;
        assert_equal("a core taken before the interrupt", &is_early, &false)
    })?;
    drop(hold);
    Ok(node)
}

/// A core that another process takes offline while a node is created does not become the node's,
/// and stays offline.
fn switched_off_concurrently() -> Result<(), Finding> {
    let driver = Driver::open()?;
    let memory = IdleMemory::allocate(&driver, &SUPPLY)?;
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

/// A core that another process brings online while it is returned counts as returned.
fn switched_on_concurrently() -> Result<(), Finding> {
    let node = DoorbellNode::start(&[CORE])?;
    let hold = Hold::asleep("add_cpu")?;
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| stop(&node.idle.node));
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

/// File of the kernel's lockdown, which lasts until the next boot.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// A locked down base starts no node, as it starts no unsigned kernel by kexec: neither a new one
/// nor an existing one. Running nodes are not affected.
fn locked_down(context: &Context) -> Result<(), Finding> {
    add_unpacked_image(context, "debian", "6.12")?;
    let size = ["--cpu-list", "2", "--memory", "256M"];
    let stopped = TestNode::start("stopped", &["--image", "debian"], &size, "idle")?;
    insula(&["kill", &stopped.name])?;
    let created = IdleNode::create("created", &[CORE])?;
    let size = ["--cpu-list", "1", "--memory", "256M"];
    let running = TestNode::start("running", &["--image", "debian"], &size, "compute")?;
    running.assert_works()?;
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
    try_insula(&run)?.refused(1, &why)?;
    for node in [&stopped, &running] {
        try_insula(&["restart", &node.name])?.refused(1, &why)?;
    }
    let started = created.start().err();
    let errno = started.map(|error| error.errno);
    assert_equal("the refusal of a start", &errno, &Some(Errno::EPERM))?;
    let check = try_insula(&["machine", "check"])?;
    Finding::unless(check.status == Some(1), || {
        format!("`machine check` finds a locked down base good: {check:?}")
    })?;
    running.assert_works()?;
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

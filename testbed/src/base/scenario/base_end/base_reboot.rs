//! The base reboots while nodes run.

use std::fs;
use std::time::Duration;

use insula_abi::State;
use insula_driver::name::Name;
use insula_driver::{Driver, Node};
use nix::errno::Errno;

use super::{end_by, start_nodes, store_success};
use crate::base::support::hold::Hold;
use crate::base::support::insula_command::{assert_equal, wait_for};
use crate::base::support::nodes::idle_node::{IdleMemory, SUPPLY};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base_reboot",
    proves: "the base reboots without delay though nodes run, and from then on no node can start",
    machine: Shape {
        cpus: 7,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(180),
    soak_limit: None,
    play,
};

/// Function of the module that is called with a node's lock held.
const UNDER_LOCK: &str = "insula_memory_install";
/// Time in which a running core counts far.
const PAUSE: Duration = Duration::from_millis(500);

fn play(context: &Context) -> Result<(), Finding> {
    let _nodes = start_nodes(context)?;
    let driver = Driver::open()?;
    let busy = IdleNode::create(&driver, "busy", 1)?;
    busy.node.start(&busy.memory.start_parameters())?;
    let counts = || Ok((busy.memory.count()? > 0).then_some(()));
    wait_for("a core to count", counts)?;
    let late = IdleNode::create(&driver, "late", 2)?;

    let hold = Hold::asleep_and_reboot(UNDER_LOCK)?;
    std::thread::scope(|scope| {
        scope.spawn(|| busy.node.memory());
        hold.wait()?;
        let reboot = scope.spawn(|| end_by(&["busybox", "reboot", "-f"]));
        let checked = hold
            .wait_for_reboot()
            .and_then(|()| nothing_runs(&driver, &busy, &late))
            .and_then(|()| store_success(context));
        if let Err(finding) = &checked {
            // The machine goes down before it could be stored.
            fs::write("/dev/kmsg", format!("testbed: {finding}"))?;
        }
        hold.release()?;
        reboot
            .join()
            .map_err(|_| Finding::new("a thread failed"))?
            .and(checked)
    })
}

/// A node that only counts.
struct IdleNode {
    node: Node,
    memory: IdleMemory,
}

impl IdleNode {
    fn create(driver: &Driver, name: &str, cpu: u32) -> Result<Self, Finding> {
        let memory = IdleMemory::allocate(driver, &SUPPLY)?;
        let name = name.parse::<Name>()?.to_abi();
        let node = driver.create_node(&name, &[], &[cpu], &memory.object)?;
        Ok(Self { node, memory })
    }
}

/// After the reboot notifiers: nodes have been stopped, also one with a call in progress, and no
/// other can start.
fn nothing_runs(driver: &Driver, busy: &IdleNode, late: &IdleNode) -> Result<(), Finding> {
    for name in ["one", "two"] {
        let node = driver.open_node(&name.parse::<Name>()?.to_abi())?;
        assert_equal(name, &node.info()?.0.state, &State::STOPPED)?;
    }
    let counted = busy.memory.count()?;
    std::thread::sleep(PAUSE);
    assert_equal("counter of a core", &busy.memory.count()?, &counted)?;

    let shut_down = Some(Errno::ESHUTDOWN);
    let started = late.node.start(&late.memory.start_parameters()).err();
    let errno = started.map(|error| error.errno);
    assert_equal("the refusal of a start", &errno, &shut_down)?;
    let memory = IdleMemory::allocate(driver, &SUPPLY)?;
    let name = "later".parse::<Name>()?.to_abi();
    let created = driver.create_node(&name, &[], &[3], &memory.object).err();
    let errno = created.map(|error| error.errno);
    assert_equal("the refusal of a node", &errno, &shut_down)
}

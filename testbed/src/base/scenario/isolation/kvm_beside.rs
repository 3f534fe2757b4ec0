//! KVM in the base beside a confined node: both use the processors' virtualization, each on its own
//! cores, and cores change hands.

use std::time::Duration;

use crate::base::support::insula_command::{insula, with_cleanup};
use crate::base::support::kvm_guest;
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::support::resources::{Resources, assert_unchanged};
use crate::base::support::virtio_modules::modprobe;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "kvm_beside",
    proves: "KVM in the base and confined nodes do not disturb each other, whichever comes first",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(400),
    soak_limit: None,
    play,
};

const CORES: [u32; 4] = [0, 1, 2, 3];
/// Arguments by which modprobe unloads KVM, and a module that it had loaded for it and leaves.
const KVM_UNLOADED: [&str; 4] = ["--remove", "kvm_amd", "kvm", "irqbypass"];

fn play(context: &Context) -> Result<(), Finding> {
    with_cleanup(|| {
        let before = Resources::now()?;
        modprobe(&["kvm_amd"])?;
        guests(&CORES)?;
        let node = confined(context)?;
        beside(&node)?;
        modprobe(&KVM_UNLOADED)?;
        node.assert_works()?;
        // The node was first.
        modprobe(&["kvm_amd"])?;
        beside(&node)?;
        node.remove()?;
        guests(&CORES)?;
        modprobe(&KVM_UNLOADED)?;
        insula(&["image", "rm", "peer-6.12"])?;
        assert_unchanged(&before)
    })
}

/// A confined node that computes, on some of the cores.
fn confined(context: &Context) -> Result<TestNode, Finding> {
    let image = peer_image(context, "6.12")?;
    let size = ["--isolation", "vmm", "--cpus", "2", "--memory", "192M"];
    let node = TestNode::start("confined", &["--image", &image], &size, "compute")?;
    node.wait_until_ready()?;
    Ok(node)
}

/// Guests run on the base's cores while the node goes on.
fn beside(node: &TestNode) -> Result<(), Finding> {
    let free: Vec<_> = CORES
        .into_iter()
        .filter(|core| !node.cpus.contains(core))
        .collect();
    guests(&free)?;
    node.assert_works()?;
    guests(&free)
}

fn guests(cores: &[u32]) -> Result<(), Finding> {
    cores.iter().try_for_each(|&core| kvm_guest::run_on(core))
}

//! Scenarios: programs that run inside an emulated machine and prove a behaviour, in folders by
//! subject.
//!
//! To add one: write `SUBJECT/NAME.rs`, declare it in the subject's `mod.rs` and add it to [`ALL`].
//! `make test` then plays it on the kernels that it names. Around each the runner checks that the
//! base's state is unchanged and that its kernel log has no error.
//!
//! All have one shape: a comment that says what they prove, [`Scenario`] `SCENARIO`, constants and
//! types, the function `play`, and its steps in their order, with what only one step needs beside
//! it. A step with much of its own has a file in `SUBJECT/NAME/`. What several scenarios need is in
//! `base/support/`.

mod base_end;
mod communication;
mod container;
mod device;
mod failure;
mod fuzzing;
mod isolation;
mod lightweight_kernel;
mod module;
mod node;
mod resources;
mod watching;

use std::time::Duration;

use super::{Context, Finding};
use crate::host::kernels::Flavour;
use crate::host::machine::{Emulator, SpareDevices};
use crate::host::root::Root;

pub(crate) use base_end::vmcore;

/// All scenarios, in the order in which they are run.
pub const ALL: &[&Scenario] = &[
    &module::base::SCENARIO,
    &node::two_nodes::SCENARIO,
    &lightweight_kernel::lwk::SCENARIO,
    &lightweight_kernel::programs::SCENARIO,
    &lightweight_kernel::servers::SCENARIO,
    &lightweight_kernel::drivers::SCENARIO,
    &lightweight_kernel::network_server::SCENARIO,
    &lightweight_kernel::shared_core::SCENARIO,
    &lightweight_kernel::base_mappings::SCENARIO,
    &lightweight_kernel::other_tasks::SCENARIO,
    &lightweight_kernel::moving::SCENARIO,
    &lightweight_kernel::databases::SCENARIO,
    &lightweight_kernel::builds::SCENARIO,
    &lightweight_kernel::parallel::SCENARIO,
    &node::endings::SCENARIO,
    &failure::supervision::SCENARIO,
    &failure::post_mortem::SCENARIO,
    &watching::watch::SCENARIO,
    &watching::watch_base::SCENARIO,
    &watching::watch_shared_core::SCENARIO,
    &watching::watch_work::SCENARIO,
    &node::images::SCENARIO,
    &node::documented::SCENARIO,
    &node::refusals::SCENARIO,
    &module::revision::SCENARIO,
    &module::packages::SCENARIO,
    &resources::pool::SCENARIO,
    &resources::numa::SCENARIO,
    &resources::cores::SCENARIO,
    &node::up_down::SCENARIO,
    &node::x2apic::SCENARIO,
    &isolation::confined::SCENARIO,
    &isolation::confined_vmx::SCENARIO,
    &isolation::shared_confined_core::SCENARIO,
    &isolation::shared_confined_core::VMX,
    &isolation::cloned_disks::SCENARIO,
    &isolation::clones::SCENARIO,
    &isolation::loaded_snapshot::SCENARIO,
    &isolation::confined_update::SCENARIO,
    &isolation::confined_devices::SCENARIO,
    &isolation::confined_grants::SCENARIO,
    &isolation::confined_lwk::SCENARIO,
    &isolation::confined_paused::SCENARIO,
    &isolation::confined_programs::SCENARIO,
    &isolation::hostile::SCENARIO,
    &isolation::kvm_beside::SCENARIO,
    &isolation::attacked::SCENARIO,
    &isolation::attacked::FAULT,
    &communication::channels::SCENARIO,
    &communication::frames::SCENARIO,
    &lightweight_kernel::delegation::SCENARIO,
    &resources::update::SCENARIO,
    &container::virtio::SCENARIO,
    &container::agent::SCENARIO,
    &container::attach::SCENARIO,
    &container::networks::SCENARIO,
    &container::clock::SCENARIO,
    &container::disks::SCENARIO,
    &container::living::SCENARIO,
    &container::move_linux::SCENARIO,
    &container::checkpoint::SCENARIO,
    &container::upgrade::SCENARIO,
    &container::oci::SCENARIO,
    &container::oci::podman::SCENARIO,
    &container::oci::CONTAINERD,
    &container::conformance::SCENARIO,
    &container::oci::cri::SCENARIO,
    &container::oci::kubelet::SCENARIO,
    &container::oci::podman_tests::RUN,
    &container::oci::podman_tests::LIFE,
    &container::oci::podman_tests::VOLUMES,
    &container::oci::podman_tests::COPY,
    &container::oci::podman_tests::NETWORKS,
    &container::services::SCENARIO,
    &container::services::large::SCENARIO,
    &container::move_kills::SCENARIO,
    &container::move_base::SCENARIO,
    &container::move_memory::SCENARIO,
    &node::cycles::SCENARIO,
    &failure::kills::SCENARIO,
    &fuzzing::fuzz::SCENARIO,
    &device::devices::SCENARIO,
    &device::devices_iommu::SCENARIO,
    &device::devices_remapped::SCENARIO,
    &watching::base_reset::SCENARIO,
    &base_end::base_sleep::SCENARIO,
    &base_end::base_reboot::SCENARIO,
    &base_end::base_kexec::SCENARIO,
    &base_end::base_panic::SCENARIO,
    &base_end::base_kdump::SCENARIO,
];

/// A behaviour to be proven.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it proves, in a few words.
    pub proves: &'static str,
    /// Machine that it needs.
    pub machine: Shape,
    /// Who loads insula.ko.
    pub module: Module,
    /// Base kernels on which `make test` plays it: one, unless each takes half a minute at most; none if it
    /// takes too long, and is only played by its name. `make soak PART=matrix` plays all others on all.
    pub bases: &'static [Flavour],
    /// Wall-clock time limit.
    pub limit: Duration,
    /// Wall-clock time limit with long counts; none if it has no long counts.
    pub soak_limit: Option<Duration>,
    /// Plays it.
    pub play: fn(&Context) -> Result<(), Finding>,
}

/// What a machine consists of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Cores.
    pub cpus: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// NUMA nodes.
    pub numa_nodes: u32,
    /// PCI functions to be given to nodes.
    pub spare_devices: SpareDevices,
    /// Root disk, unless the module is [`Module::Installed`].
    pub root: Root,
    /// Added to the base kernel's command line.
    pub append: &'static str,
    /// What runs it.
    pub emulator: Emulator,
    /// How often it is booted, each time as a new machine. What one has left in `/result/kept` is in
    /// `KEPT` of the next.
    pub boots: u32,
    /// A reset starts it again, with its memory as it is; else it ends the machine.
    pub resets: bool,
    /// An emulated machine has a thread for each core. For nodes that start while several cores
    /// compute: on one thread each of these takes turns of 100 ms, and Linux then fails to calibrate its
    /// local timer. Not with the installed emulator, which then may execute stale code (`emulator_fault`).
    pub thread_per_core: bool,
}

/// Folder of what the machine's earlier boot has left for this one.
pub(crate) const KEPT: &str = "/payload/kept";

/// Has the base's kernel mitigate processors' faults as usual, also on an emulated machine.
pub(crate) const MITIGATIONS: &str = "mitigations=auto";

impl Shape {
    /// 4 cores, 4 GiB.
    pub const USUAL: Self = Self {
        cpus: 4,
        memory_mib: 4096,
        numa_nodes: 1,
        spare_devices: SpareDevices::None,
        root: Root::Test,
        append: "",
        emulator: Emulator::Installed,
        boots: 1,
        resets: false,
        thread_per_core: false,
    };
}

/// Who loads insula.ko.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// The runner loads it before the scenario, and unloads it after.
    Loaded,
    /// The scenario loads it, and must have unloaded it at its end.
    ByScenario,
    /// The service loads it, on a machine under systemd that has the project installed by its
    /// packages. The service waits until the scenario has notified systemd that it is ready. At the
    /// end the module must have been unloaded.
    Installed,
}

/// The scenario of that name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().copied().find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for scenario in ALL {
            let same = ALL.iter().filter(|other| other.name == scenario.name);
            assert_eq!(same.count(), 1, "{}", scenario.name);
        }
    }

    #[test]
    fn threads_for_cores_take_the_newer_emulator() {
        for scenario in ALL.iter().filter(|one| one.machine.thread_per_core) {
            assert_eq!(
                scenario.machine.emulator,
                Emulator::Backports,
                "{}",
                scenario.name
            );
        }
    }
}

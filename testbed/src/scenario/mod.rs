//! Scenarios: programs that run inside an emulated machine and prove a behaviour.
//!
//! To add one: write `NAME.rs` here with a `pub(super) const SCENARIO` and add `NAME` to the list
//! below. `make test` then plays it on the kernels that it names. Around each the runner checks
//! that the base's state is unchanged and that its kernel log has no error.

mod base_end;
mod base_state;
mod context;
mod device_refusals;
mod fake_lwk;
mod finding;
mod fuzz_call;
mod fuzz_found;
mod fuzz_numbers;
mod fuzz_targets;
mod hang;
mod hold;
mod idle_node;
mod in_node;
mod insula_command;
mod insula_module;
mod load;
mod mapped_pages;
mod peer_node;
mod poll_rate;
mod privileges;
mod raw_device;
mod real_time;
mod resources;
mod runner;
mod spare;
pub mod splat;
mod supervisor_process;
mod test_node;
mod unplugged;

use std::time::Duration;

use crate::kernels::Flavour;
use crate::machine::SpareDevices;

pub use base_state::BaseState;
pub use context::Context;
pub use finding::Finding;
pub use hang::{HANG_SYMBOL, hang};
pub use insula_module::{LoadedModule, module_is_loaded};
pub use runner::run;

/// Lists the scenarios, in the order in which they are run.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        $(mod $name;)+

        /// All scenarios.
        pub const ALL: &[&Scenario] = &[$(&$name::SCENARIO),+];
    };
}

scenarios! {
    base,
    two_nodes,
    lwk,
    programs,
    endings,
    supervision,
    post_mortem,
    images,
    refusals,
    revision,
    packages,
    pool,
    numa,
    cores,
    up_down,
    channels,
    frames,
    delegation,
    update,
    virtio,
    agent,
    disks,
    living,
    cycles,
    kills,
    fuzz,
    devices,
    devices_iommu,
    devices_remapped,
    base_sleep,
    base_reboot,
    base_kexec,
    base_panic,
    base_kdump,
}

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
    /// Base kernels on which `make test` plays it: one, unless the result depends on the base's
    /// kernel.
    pub bases: &'static [Flavour],
    /// Wall-clock time limit.
    pub limit: Duration,
    /// Wall-clock time limit with long counts; none if it has no long counts.
    pub soak_limit: Option<Duration>,
    /// Plays it.
    pub play: fn(&Context) -> Result<(), Finding>,
}

/// Size of a machine.
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
    /// Added to the base kernel's command line.
    pub append: &'static str,
}

impl Shape {
    /// 4 cores, 4 GiB.
    pub const USUAL: Self = Self {
        cpus: 4,
        memory_mib: 4096,
        numa_nodes: 1,
        spare_devices: SpareDevices::None,
        append: "",
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
}

//! Scenarios: what is played inside an emulated machine to prove a behaviour.
//!
//! To add one: write `NAME.rs` here with a `pub(super) const SCENARIO` and add
//! `NAME` to the list below. `make test` then plays it on the kernels that it names.
//! Around each the runner checks that the base is left as it was found and that
//! its kernel log holds no complaint.

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
mod holdings;
mod idle_node;
mod in_node;
mod insula_command;
mod insula_module;
mod lent_pages;
mod load;
mod peer_node;
mod privileges;
mod raw_device;
mod real_time;
mod runner;
mod spare;
pub mod splat;
mod supervisor_process;
mod test_node;
mod unplugged;
mod watch_rate;

use std::time::Duration;

use crate::kernels::Flavour;
use crate::machine::SpareDevices;

pub use base_state::BaseState;
pub use context::Context;
pub use finding::Finding;
pub use hang::{HANG_SYMBOL, hang};
pub use insula_module::{LoadedModule, module_is_loaded};
pub use runner::run;

/// Names the scenarios, in the order in which they are run.
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

/// One behaviour to be proven.
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// What it proves, in a few words.
    pub proves: &'static str,
    /// The machine that it takes.
    pub machine: Shape,
    /// Who loads insula.ko.
    pub module: Module,
    /// The kernels of bases that `make test` plays it on: one, unless it depends on the base's
    /// kernel what becomes of it.
    pub bases: &'static [Flavour],
    /// Wall-clock time after which it is given up.
    pub limit: Duration,
    /// The same when it is run with long counts; none if it has none.
    pub soak_limit: Option<Duration>,
    /// Plays it.
    pub play: fn(&Context) -> Result<(), Finding>,
}

/// The size of a machine.
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
    /// It is loaded before the scenario and must unload after it.
    Loaded,
    /// The scenario does that, and must have unloaded it in the end.
    ByScenario,
    /// The service does that, on a machine under systemd that has the project installed
    /// by its packages. It waits until the scenario has told systemd that it is ready.
    /// In the end the module must have been unloaded.
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

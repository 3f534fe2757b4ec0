//! A scenario played on an emulated machine, and judged from outside.

use std::time::Duration;

use crate::equipment::{self, EquipmentError};
use crate::kernels::{Flavour, Sanitizer};
use crate::machine::{Accelerator, Failure, Machine, MachineError, Outcome, Task};
use crate::root::Root;
use crate::scenario::{Module, Scenario, splat};

/// Why a scenario has not been proven.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The machine could not be equipped.
    #[error(transparent)]
    Equipment(#[from] EquipmentError),
    /// The machine could not be run.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// It was, and the scenario failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Plays a scenario on a machine of its shape with `base` as the kernel; with
/// `soak` in long counts, showing what it prints.
///
/// # Errors
/// When it fails, or the kernel log of the machine holds a complaint.
pub fn run(
    scenario: &Scenario,
    base: Flavour,
    accelerator: Accelerator,
    soak: bool,
    tell: &mut dyn FnMut(&str),
) -> Result<Outcome, TrialError> {
    let (root, payload) = match scenario.module {
        Module::Installed => (
            Root::Installed,
            equipment::assemble_for_installed(base, tell)?,
        ),
        _ => (Root::Test, equipment::assemble(base, tell)?),
    };
    let mut words = vec!["insula-scenario".to_owned(), scenario.name.to_owned()];
    if soak {
        words.push("--soak".to_owned());
    }
    let memory_mib = scenario.machine.memory_mib;
    let sanitizer = base.sanitizer();
    let machine = Machine {
        cpus: scenario.machine.cpus,
        memory_mib: sanitizer.map_or(memory_mib, |kind| kind.memory_mib(memory_mib)),
        numa_nodes: scenario.machine.numa_nodes,
        spare_devices: scenario.machine.spare_devices,
        append: scenario.machine.append.to_owned(),
        accelerator,
        root,
        limit: limit(scenario, soak) * sanitizer.map_or(1, Sanitizer::slowness),
        ..Machine::new(base)
    };
    let outcome = machine
        .run(&Task::Command(words), &payload, soak, tell)?
        .succeeded()?;
    match splat::find(&outcome.log).map(str::to_owned) {
        Some(line) => Err(outcome
            .fail(format!("the machine's kernel complained: {line}"))
            .into()),
        None => Ok(outcome),
    }
}

fn limit(scenario: &Scenario, soak: bool) -> Duration {
    let soak_limit = scenario.soak_limit.filter(|_| soak);
    soak_limit.unwrap_or(scenario.limit)
}

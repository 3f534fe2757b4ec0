//! Run of a scenario on an emulated machine, judged from outside.

use std::time::Duration;

use super::kernels::{Flavour, Sanitizer};
use super::machine::{Accelerator, Failure, Machine, MachineError, Outcome, Task};
use super::root::Root;
use crate::base::{Module, Scenario, splat};
use crate::host::payload::equipment::{self, EquipmentError};

/// Failure of a scenario's run.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The machine could not be equipped.
    #[error(transparent)]
    Equipment(#[from] EquipmentError),
    /// The machine could not be run.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The scenario failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Plays a scenario on a machine of its shape with `base` as the kernel; with `soak` in long
/// counts, showing its output.
///
/// # Errors
/// When it fails, or the kernel log of the machine has an error.
pub fn run(
    scenario: &Scenario,
    base: Flavour,
    accelerator: Accelerator,
    soak: bool,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, TrialError> {
    let (root, payload) = match scenario.module {
        Module::Installed => (
            Root::Installed,
            equipment::assemble_for_installed(base, progress)?,
        ),
        _ => (scenario.machine.root, equipment::assemble(base, progress)?),
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
        .run(&Task::Command(words), &payload, soak, progress)?
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

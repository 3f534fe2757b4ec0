//! Run of a scenario on an emulated machine, judged from outside.

use std::time::Duration;

use super::kernels::{Flavour, Sanitizer};
use super::machine::{
    Accelerator, Emulator, Failure, Machine, MachineError, Outcome, SpareDevices, Task,
};
use super::root::Root;
use crate::base::{Module, Scenario, splat};
use crate::host::payload::equipment::{self, EquipmentError};
use crate::host::payload::{Content, Payload};

/// Before a scenario's own words on the command line of an emulated base, the last of which count. What mitigates
/// processors' faults, indirect branches by way of returns above all, takes an emulator up to a third of its time.
const UNMITIGATED: &str = "mitigations=off";
/// Start of the paths of files that the next boot of the machine gets.
const KEPT: &str = "kept/";

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

/// How a scenario is played.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Kernel of the base.
    pub base: Flavour,
    /// Accelerator of the machine.
    pub accelerator: Accelerator,
    /// Emulator instead of the one that the scenario names.
    pub emulator: Option<Emulator>,
    /// Spare devices instead of those that the scenario names.
    pub spare_devices: Option<SpareDevices>,
    /// In long counts.
    pub soak: bool,
    /// Its output is shown.
    pub show: bool,
}

impl Conditions {
    /// As `make test` plays it.
    #[must_use]
    pub fn usual(base: Flavour, accelerator: Accelerator) -> Self {
        Self {
            base,
            accelerator,
            emulator: None,
            spare_devices: None,
            soak: false,
            show: false,
        }
    }
}

/// Plays a scenario on a machine of its shape.
///
/// # Errors
/// When it fails, or the kernel log of the machine has an error.
pub fn run(
    scenario: &Scenario,
    conditions: Conditions,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, TrialError> {
    let Conditions {
        base, soak, show, ..
    } = conditions;
    let (root, mut payload) = match scenario.module {
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
    let machine = Machine {
        root,
        ..machine(scenario, conditions)
    };
    words.extend(["--limit".to_owned(), machine.limit.as_secs().to_string()]);
    let task = Task::Command(words);
    let mut outcome = boot(&machine, &task, &payload, show, progress)?;
    for _ in 1..scenario.machine.boots {
        let earlier = std::mem::take(&mut outcome.files);
        let kept = earlier
            .into_iter()
            .filter(|(path, _)| path.starts_with(KEPT));
        kept.for_each(|(path, bytes)| payload.file(&path, Content::Bytes(bytes)));
        let elapsed = outcome.elapsed;
        outcome = boot(&machine, &task, &payload, show, progress)?;
        outcome.elapsed += elapsed;
    }
    Ok(outcome)
}

/// Boots the machine and plays the scenario on it.
fn boot(
    machine: &Machine,
    task: &Task,
    payload: &Payload,
    show: bool,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, TrialError> {
    let outcome = machine.run(task, payload, show, progress)?.succeeded()?;
    match splat::find(&outcome.log).map(str::to_owned) {
        Some(line) => Err(outcome
            .fail(format!("the machine's kernel complained: {line}"))
            .into()),
        None => Ok(outcome),
    }
}

/// Machine of the scenario's shape.
fn machine(scenario: &Scenario, conditions: Conditions) -> Machine {
    let Conditions { base, soak, .. } = conditions;
    let shape = &scenario.machine;
    let sanitizer = base.sanitizer();
    Machine {
        cpus: shape.cpus,
        memory_mib: sanitizer.map_or(shape.memory_mib, |kind| kind.memory_mib(shape.memory_mib)),
        numa_nodes: shape.numa_nodes,
        spare_devices: conditions.spare_devices.unwrap_or(shape.spare_devices),
        append: match conditions.accelerator {
            Accelerator::Kvm => shape.append.to_owned(),
            Accelerator::Tcg | Accelerator::TcgParallel => {
                format!("{UNMITIGATED} {}", shape.append)
            }
        },
        resets: shape.resets,
        emulator: conditions.emulator.unwrap_or(shape.emulator),
        accelerator: match conditions.accelerator {
            Accelerator::Tcg if shape.thread_per_core => Accelerator::TcgParallel,
            usual => usual,
        },
        limit: limit(scenario, soak) * sanitizer.map_or(1, Sanitizer::slowness),
        ..Machine::new(base)
    }
}

fn limit(scenario: &Scenario, soak: bool) -> Duration {
    let soak_limit = scenario.soak_limit.filter(|_| soak);
    soak_limit.unwrap_or(scenario.limit)
}

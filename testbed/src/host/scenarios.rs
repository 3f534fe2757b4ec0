//! `testbed scenario`: plays scenarios, and counts those that passed.

use std::error::Error;

use clap::Args;
use testbed::base::{Scenario, scenario};
use testbed::host::kernels::Flavour;
use testbed::host::machine::{Accelerator, Emulator, SpareDevices};
use testbed::host::trial::{self, Conditions};

use super::{chosen_or_detected, progress};

#[derive(Args)]
pub(crate) struct ScenarioArguments {
    /// Scenario to play; all if none is named.
    pub(crate) name: Option<String>,
    /// Kernels of the base, separated by commas.
    #[arg(long, value_delimiter = ',', default_values = ["6.1", "6.12"])]
    pub(crate) kernel: Vec<Flavour>,
    /// With long counts; only scenarios that have such.
    #[arg(long)]
    pub(crate) soak: bool,
    /// Show what it prints, with the time that each command took. With --soak it is shown anyway.
    #[arg(long)]
    pub(crate) show: bool,
    /// tcg, tcg-parallel or kvm; without it, kvm where it works, else tcg.
    #[arg(long, env = "INSULA_ACCELERATOR")]
    pub(crate) accelerator: Option<Accelerator>,
    /// Instead of the QEMU that a scenario names: installed or backports.
    #[arg(long, value_name = "WHICH")]
    pub(crate) emulator: Option<Emulator>,
    /// Instead of the spare devices that a scenario names: none, plain, iommu, remapping or
    /// x2apic.
    #[arg(long, value_name = "KIND")]
    pub(crate) spare_devices: Option<SpareDevices>,
}

/// Plays scenarios, each on its own machine.
///
/// # Errors
/// When there is none of that name, or a machine cannot be executed.
pub(crate) fn play(arguments: &ScenarioArguments) -> Result<u8, Box<dyn Error>> {
    let mut wanted: Vec<&Scenario> = match &arguments.name {
        Some(name) => {
            vec![scenario::find(name).ok_or_else(|| format!("there is no scenario `{name}`"))?]
        }
        None => scenario::ALL.to_vec(),
    };
    let is_named = arguments.name.is_some();
    wanted.retain(|scenario| is_named || !scenario.bases.is_empty());
    wanted.retain(|scenario| !arguments.soak || scenario.soak_limit.is_some());
    let mut failed = 0;
    for scenario in &wanted {
        for &base in &arguments.kernel {
            let conditions = conditions(arguments, base)?;
            progress(&format!(
                "{} on {base} ({}): {}",
                scenario.name, conditions.accelerator, scenario.proves
            ));
            match trial::run(scenario, conditions, &mut progress) {
                Ok(outcome) => {
                    progress(&format!("passed in {:.1} s", outcome.elapsed.as_secs_f64()))
                }
                Err(error) => {
                    failed += 1;
                    progress(&format!("failed: {error}"));
                }
            }
        }
    }
    let passed = wanted.len() * arguments.kernel.len() - failed;
    println!("{passed} passed, {failed} failed");
    Ok(u8::from(failed > 0))
}

fn conditions(arguments: &ScenarioArguments, base: Flavour) -> Result<Conditions, Box<dyn Error>> {
    let accelerator = chosen_or_detected(arguments.accelerator, base)?;
    Ok(Conditions {
        emulator: arguments.emulator,
        spare_devices: arguments.spare_devices,
        soak: arguments.soak,
        show: arguments.soak || arguments.show,
        ..Conditions::usual(base, accelerator)
    })
}

//! Plays a scenario and checks what must hold after any.

use std::process::Command;

use super::{BaseState, Context, Finding, Module, Scenario, splat};
use crate::base::support::insula_module::LoadedModule;

/// Plays `scenario`. The base's state must be unchanged, and its kernel log must have no error.
///
/// # Errors
/// The first failure.
pub fn run(scenario: &Scenario, context: &Context) -> Result<(), Finding> {
    let before = BaseState::capture()?;
    match scenario.module {
        Module::ByScenario | Module::Installed => (scenario.play)(context)?,
        Module::Loaded => {
            let module = LoadedModule::load()?;
            (scenario.play)(context)?;
            module
                .unload()
                .map_err(|finding| finding.when("after the scenario"))?;
        }
    }
    BaseState::capture()?.assert_same(&before)?;
    let log = Command::new("dmesg").output()?;
    match splat::find(&String::from_utf8_lossy(&log.stdout)) {
        Some(line) => Err(Finding::new(format!("the kernel log has an error: {line}"))),
        None => Ok(()),
    }
}

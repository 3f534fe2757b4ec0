//! Debian's programs on a lightweight kernel that is confined: as on one that is trusted.

use std::time::Duration;

use super::CONFINED;
use crate::base::scenario::lightweight_kernel::programs;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "confined_programs",
    proves: "Debian's programs run on a confined lightweight kernel as on Linux",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[],
    limit: Duration::from_secs(900),
    soak_limit: Some(Duration::from_secs(900)),
    play,
};

fn play(_: &Context) -> Result<(), Finding> {
    programs::play_on(&CONFINED)
}

//! The lightweight kernel, confined: it works as a trusted one does, and reaches no page of the base
//! longer, or in another way, than the base lets a program of it.

mod page_tables;

use std::time::Duration;

use super::CONFINED;
use crate::base::scenario::lightweight_kernel::{base_mappings, lwk};
use crate::base::support::insula_command::with_cleanup;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "confined_lwk",
    proves: "a confined lightweight kernel works, and reaches no page of the base that was taken back",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(900),
    soak_limit: Some(Duration::from_secs(3600)),
    play,
};

fn play(context: &Context) -> Result<(), Finding> {
    lwk::play_on(&CONFINED)?;
    with_cleanup(page_tables::are_not_believed)?;
    base_mappings::play_on(context, &CONFINED)
}

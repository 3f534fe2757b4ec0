//! Memory of a process of the base that is granted to a confined node.

use std::time::Duration;

use super::CONFINED;
use crate::base::scenario::communication::frames;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;
use crate::host::machine::Emulator;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "confined_grants",
    proves: "a confined node uses memory that it was granted, until that is revoked",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(600),
    soak_limit: None,
    play,
};

fn play(context: &Context) -> Result<(), Finding> {
    frames::grants_to(context, &CONFINED)
}

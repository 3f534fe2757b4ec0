//! The base reboots under its nodes.

use std::time::Duration;

use super::base_end::{end_by, start_nodes, store_success};
use super::{Context, Finding, Module, Scenario, Shape};
use crate::kernels::Flavour;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "base_reboot",
    proves: "the base reboots without delay though nodes run",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &Flavour::USUAL,
    limit: Duration::from_secs(180),
    soak_limit: None,
    play,
};

fn play(context: &Context) -> Result<(), Finding> {
    let _nodes = start_nodes(context)?;
    store_success(context)?;
    end_by(&["busybox", "reboot", "-f"])
}

//! The base panics while nodes run.

use std::fs;
use std::time::Duration;

use super::{end_by, start_nodes, store_success};
use crate::base::{Context, Finding, Module, Scenario, Shape, splat};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "base_panic",
    proves: "a panic of the base ends the machine without delay though nodes run",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(180),
    soak_limit: None,
    play,
};

fn play(context: &Context) -> Result<(), Finding> {
    let _nodes = start_nodes(context)?;
    store_success(context)?;
    fs::write("/dev/kmsg", splat::EXPECTED)?;
    end_by(&["sh", "-c", "echo c > /proc/sysrq-trigger"])
}

//! Programs that start many others, with Linux' results on the lightweight kernel: make with gcc, and
//! git.

use std::time::Duration;

use crate::base::support::applications::{Application, are_alike};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::root::Root;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "builds",
    proves: "make, gcc and git have Linux' results on the lightweight kernel",
    machine: Shape {
        root: Root::Applications,
        ..Shape::USUAL
    },
    module: Module::Loaded,
    bases: &[],
    limit: Duration::from_secs(500),
    soak_limit: Some(Duration::from_secs(3000)),
    play,
};

const APPLICATIONS: &[Application] = &[
    // Source files.
    Application {
        name: "make",
        script: include_str!("builds/make.sh"),
        files: &[("Makefile", include_str!("builds/c.mk"))],
        user: "root",
        counts: (6, 200),
    },
    // Files of each of four commits.
    Application {
        name: "git",
        script: include_str!("builds/git.sh"),
        files: &[],
        user: "root",
        counts: (20, 1000),
    },
];

fn play(context: &Context) -> Result<(), Finding> {
    are_alike(context, APPLICATIONS)
}

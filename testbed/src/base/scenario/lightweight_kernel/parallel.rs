//! Programs of many processes and threads, with Linux' results on the lightweight kernel: MPICH and
//! Open MPI over shared memory, worker threads of node.js, threads of Java that write a mapped file,
//! and a program of Perl with many children.

use std::time::Duration;

use crate::base::support::applications::{Application, are_alike};
use crate::base::support::spare::shell;
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::root::Root;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "parallel",
    proves: "MPI, node.js, Java and Perl have Linux' results on the lightweight kernel",
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

const MPI: &[(&str, &str)] = &[("exchange.c", include_str!("parallel/exchange.c"))];

const APPLICATIONS: &[Application] = &[
    // Children.
    Application {
        name: "Perl",
        script: include_str!("parallel/perl.sh"),
        files: &[("children.pl", include_str!("parallel/children.pl"))],
        user: "root",
        counts: (12, 500),
    },
    // Rounds.
    Application {
        name: "MPICH",
        script: include_str!("parallel/mpich.sh"),
        files: MPI,
        user: "root",
        counts: (3, 1000),
    },
    Application {
        name: "Open MPI",
        script: include_str!("parallel/openmpi.sh"),
        files: MPI,
        user: "root",
        counts: (3, 1000),
    },
    // Thousands of steps of each worker.
    Application {
        name: "node.js",
        script: include_str!("parallel/node.sh"),
        files: &[("workers.js", include_str!("parallel/workers.js"))],
        user: "root",
        counts: (30, 10_000),
    },
    // KiB of the file.
    Application {
        name: "Java",
        script: include_str!("parallel/java.sh"),
        files: &[("Writers.java", include_str!("parallel/Writers.java"))],
        user: "root",
        counts: (256, 16_384),
    },
];

fn play(context: &Context) -> Result<(), Finding> {
    let done = are_alike(context, APPLICATIONS);
    // MPICH and Open MPI look for InfiniBand, for which the base loads modules. Those that others
    // need come last.
    shell("modprobe --remove rdma_ucm rdma_cm iw_cm ib_cm ib_uverbs ib_core configfs")?;
    done
}

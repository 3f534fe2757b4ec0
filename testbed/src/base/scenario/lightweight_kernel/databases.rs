//! Programs that store data, with Linux' results on the lightweight kernel: PostgreSQL, whose
//! processes share memory and are killed; redis, which writes a dump from a fork while it goes on;
//! fio, which verifies what it has written.

use std::time::Duration;

use crate::base::support::applications::{Application, are_alike};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::root::Root;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "databases",
    proves: "PostgreSQL, redis and fio have Linux' results on the lightweight kernel",
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
    // Keys of 4 KiB.
    Application {
        name: "redis",
        script: include_str!("databases/redis.sh"),
        files: &[],
        user: "redis",
        counts: (2048, 131_072),
    },
    // MiB of the file.
    Application {
        name: "fio",
        script: include_str!("databases/fio.sh"),
        files: &[("results.py", include_str!("databases/fio_results.py"))],
        user: "root",
        counts: (2, 64),
    },
    // Transactions of each of four clients.
    Application {
        name: "PostgreSQL",
        script: include_str!("databases/postgresql.sh"),
        files: &[],
        user: "postgres",
        counts: (8, 500),
    },
];

fn play(context: &Context) -> Result<(), Finding> {
    are_alike(context, APPLICATIONS)
}

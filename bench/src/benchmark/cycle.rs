//! Start and stop, again and again.

use std::time::Instant;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, wait_until_ready};

const KERNEL: &str = "6.12";
const NODE: &str = "node";
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];

const CYCLE: &str = "insula run --image … --cpus 1 --memory 256M; insula rm --force …";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "cycle",
    title: "Start and stop, again and again",
    how: "One cycle starts a node of 6.12 with one core and 256 MiB from a resident image and \
          removes it: both commands, their processes included. *Base* takes core and memory from \
          the running system and returns them, cleared; *pool* keeps them in the pool; *ready* \
          also waits for the node's init in between.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 4,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time("cycle.base", "a cycle, from and to the base", CYCLE)
            .unit(Unit::Seconds)
            .drawn(),
        Row::time("cycle.pool", "a cycle, from and to the pool", CYCLE)
            .unit(Unit::Seconds)
            .beside("cycle.base")
            .drawn(),
        Row::time(
            "cycle.ready",
            "a cycle from and to the base with the node's init awaited",
            CYCLE,
        )
        .unit(Unit::Seconds)
        .drawn(),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.add_image(KERNEL, KERNEL, "compressed")?;
    for _ in 0..inside.count {
        cycle(inside, "base", false)?;
        cycle(inside, "ready", true)?;
    }
    inside
        .command
        .run(&[&["machine", "reserve"], &SIZE[..]].concat())?;
    for _ in 0..inside.count {
        cycle(inside, "pool", false)?;
    }
    Ok(())
}

fn cycle(inside: &Inside, way: &str, until_ready: bool) -> Result<(), Finding> {
    let began = Instant::now();
    let words = [&["--image", KERNEL], &SIZE[..]].concat();
    let start = inside.command.start(NODE, &words)?;
    if until_ready {
        wait_until_ready(&inside.driver, &start.name)?;
    }
    inside.command.run(&["rm", "--force", NODE])?;
    inside.record(&format!("cycle.{way}"), began.elapsed().as_secs_f64())
}

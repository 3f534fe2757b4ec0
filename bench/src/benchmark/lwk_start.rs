//! Time from Enter to the end of a program on a node of its own.

use std::time::{Duration, Instant};

use testbed::base::{Finding, Shape};
use testbed::host::machine::Emulator;
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, wait_until_ready};

pub(super) const NODE: &str = "node";
pub(super) const LINUX: &str = "linux";
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];
const PROGRAM: &str = "/bin/true";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "lwk-start",
    title: "A program on a kernel of its own, from Enter to its end",
    how: "`insula run --image lwk -- /bin/true` takes a core and 256 MiB from the base, starts \
          the lightweight kernel and runs the program of the base, which is linked dynamically; \
          the time ends when the command does. Split, by a second start of the same kind: *entry* \
          is from Enter to the kernel's first instruction, *load* the part of it that puts kernel \
          and tables into the node's memory, *exec* is `insula exec` of the program on a running \
          node. With the pool, core and memory are already reserved. The peer is a Linux node of \
          6.12, resident, of the same size, from the same pool, until its init is ready (see \
          `node-boot`). Emulated by QEMU 10: 7.2 translates a position-independent program anew at \
          each start. Most of the time is translation (see `start-path`).",
    machine: Shape {
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 4,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time(
            "lwk-start.whole",
            "all, from the base",
            "insula run --image lwk --cpus 1 --memory 256M -- /bin/true",
        )
        .drawn(),
        Row::time("lwk-start.pool", "all, from the pool", "").drawn(),
        Row::time("lwk-start.entry", "of it entry, pool", "").drawn(),
        Row::time("lwk-start.load", "of it load, pool", "").drawn(),
        Row::time(
            "lwk-start.exec",
            "of it exec",
            "insula exec NODE -- /bin/true",
        )
        .drawn(),
        Row::time("lwk-start.linux", "a Linux node to its init, pool", "").drawn(),
        Row::time("lwk-start.share", "all, pool, of a Linux node's start", "")
            .unit(Unit::Share)
            .goal(0.02),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.add_image(LINUX, "6.12", "compressed")?;
    for _ in 0..inside.count {
        run(inside, "lwk-start.whole")?;
        reserve(inside)?;
        let pool_ms = run(inside, "lwk-start.pool")?;
        // Otherwise the next start would wait until the memory of this node has been cleared.
        inside.command.run(&["machine", "release"])?;
        reserve(inside)?;
        split(inside)?;
        let linux_ms = linux(inside)?;
        inside.command.run(&["machine", "release"])?;
        inside.record("lwk-start.share", pool_ms / linux_ms)?;
    }
    Ok(())
}

/// Reserves what a node takes, cleared.
pub(super) fn reserve(inside: &Inside) -> Result<(), Finding> {
    let words = [&["machine", "reserve"], &SIZE[..]].concat();
    inside.command.run(&words).map(drop)
}

/// Runs the program on a node of its own, which is removed before the command ends.
pub(super) fn run_program(inside: &Inside) -> Result<(), Finding> {
    let image = ["run", "--image", "lwk", "--name", NODE];
    let words = [&image[..], &SIZE, &["--", PROGRAM]].concat();
    inside.command.run(&words).map(drop)
}

/// Runs it and returns the time, in milliseconds.
fn run(inside: &Inside, id: &str) -> Result<f64, Finding> {
    let enter = Instant::now();
    run_program(inside)?;
    let took = enter.elapsed();
    inside.record(id, took)?;
    Ok(took.as_secs_f64() * 1e3)
}

fn split(inside: &Inside) -> Result<(), Finding> {
    let start = inside
        .command
        .start(NODE, &[&["--image", "lwk"], &SIZE[..]].concat())?;
    inside.record("lwk-start.entry", start.timing.total())?;
    inside.record("lwk-start.load", start.timing.load())?;
    // The first also waits for the kernel.
    let exec = || inside.command.run(&["exec", NODE, "--", PROGRAM]);
    exec()?;
    let enter = Instant::now();
    exec()?;
    inside.record("lwk-start.exec", enter.elapsed())?;
    inside.command.run(&["rm", "--force", NODE]).map(drop)
}

/// Starts a Linux node and returns the time until its init is ready.
pub(super) fn start_linux(inside: &Inside) -> Result<Duration, Finding> {
    let words = [&["--image", LINUX], &SIZE[..]].concat();
    let start = inside.command.start(NODE, &words)?;
    Ok(wait_until_ready(&inside.driver, &start.name)? - start.enter)
}

fn linux(inside: &Inside) -> Result<f64, Finding> {
    let took = start_linux(inside)?;
    inside.record("lwk-start.linux", took)?;
    inside.command.run(&["rm", "--force", NODE])?;
    Ok(took.as_secs_f64() * 1e3)
}

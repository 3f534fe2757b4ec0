//! Time from Enter to the kernel's first instruction.

use std::time::Duration;

use insula_node as node;
use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, Start, drop_caches, read_rate};

const KERNEL: &str = "6.12";
const IMAGE: &str = "resident";
const NODE: &str = "node";
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];

const FROM_FILES: &str = "insula run --json --kernel … --initrd … --cpus 1 --memory 256M";
const FROM_IMAGE: &str = "insula run --json --image … --cpus 1 --memory 256M";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "mint-start",
    title: "Start: from Enter to the kernel's first instruction",
    how: "Enter is the moment before the process `insula` is made, the end is the time stamp that \
          the node's core takes just before it jumps to the kernel. *Cold* and *warm* start from \
          the files of the stock 6.12 kernel and the test nodes' initrd, with empty and with \
          filled page cache; *resident* starts from a resident image; *pool* also takes the core \
          and the memory from the pool that `insula machine reserve` has filled. Each round \
          measures all four in turn. The command itself and its libraries are in memory in all of \
          them. *Load* is the part that brings kernel, initrd and tables into the node's memory. \
          Mint's figures (load + execute) are of an i7-4770 with a real disk and have no \
          counterpart to taking cores and memory from the running system.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 4,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time("mint-start.cold", "start from disk, cold", FROM_FILES)
            .mint(175.12)
            .drawn(),
        Row::time(
            "mint-start.warm",
            "start from files in the page cache",
            FROM_FILES,
        )
        .drawn(),
        Row::time(
            "mint-start.resident",
            "start from a resident image",
            FROM_IMAGE,
        )
        .mint(64.53)
        .drawn(),
        Row::time(
            "mint-start.pool",
            "start from a resident image and the pool",
            FROM_IMAGE,
        )
        .mint(64.53)
        .drawn(),
        Row::share(
            "mint-start.share.pool-of-cold",
            "start: resident from the pool, share of cold",
            0.37,
            0.15,
        ),
        Row::time("mint-start.load.cold", "of it load, cold", FROM_FILES).mint(146.14),
        Row::time("mint-start.load.warm", "of it load, page cache", FROM_FILES),
        Row::time(
            "mint-start.load.resident",
            "of it load, resident",
            FROM_IMAGE,
        )
        .mint(35.55),
        Row::time("mint-start.load.pool", "of it load, pool", FROM_IMAGE).mint(35.55),
        Row::share(
            "mint-start.share.load-pool-of-cold",
            "load: resident from the pool, share of cold",
            0.24,
            0.05,
        ),
        Row::time(
            "mint-start.process.cold",
            "of it since the process's first instruction, cold",
            FROM_FILES,
        ),
        Row::time(
            "mint-start.process.pool",
            "of it since the process's first instruction, pool",
            FROM_IMAGE,
        ),
        Row::time(
            "mint-start.disk",
            "the emulated disk, read with cold caches",
            "dd of the disk",
        )
        .unit(Unit::MegabytesPerSecond),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.keep_libraries_in_memory()?;
    let kernel = inside.kernel(KERNEL)?;
    let path = kernel.to_string_lossy();
    let initrd = inside.initrd().to_string_lossy();
    let files = ["--kernel", &path, "--initrd", &initrd];
    inside.add_image(IMAGE, KERNEL, "compressed")?;
    for _ in 0..inside.count {
        inside.record("mint-start.disk", read_rate(&kernel)?)?;
        drop_caches()?;
        let cold = measure(inside, "cold", &files)?;
        measure(inside, "warm", &files)?;
        measure(inside, "resident", &["--image", IMAGE])?;
        inside
            .command
            .run(&[&["machine", "reserve"], &SIZE[..]].concat())?;
        let pool = measure(inside, "pool", &["--image", IMAGE])?;
        inside.command.run(&["machine", "release"])?;
        let share = |pool: Duration, cold: Duration| pool.as_secs_f64() / cold.as_secs_f64();
        inside.record("mint-start.share.pool-of-cold", share(pool.all, cold.all))?;
        inside.record(
            "mint-start.share.load-pool-of-cold",
            share(pool.load, cold.load),
        )?;
    }
    Ok(())
}

struct Measured {
    all: Duration,
    load: Duration,
}

/// Starts a node, records the times and removes it.
fn measure(inside: &Inside, way: &str, source: &[&str]) -> Result<Measured, Finding> {
    let start = inside.command.start(NODE, &[source, &SIZE[..]].concat())?;
    let all = until_entry(inside, &start)?;
    let load = start.timing.load();
    inside.record(&format!("mint-start.{way}"), all)?;
    inside.record(&format!("mint-start.load.{way}"), load)?;
    if matches!(way, "cold" | "pool") {
        inside.record(&format!("mint-start.process.{way}"), start.timing.total())?;
    }
    inside.command.run(&["rm", "--force", NODE])?;
    Ok(Measured { all, load })
}

fn until_entry(inside: &Inside, start: &Start) -> Result<Duration, Finding> {
    let (machine, _) = inside.driver.machine()?;
    let info = node::find(&inside.driver, &start.name)?.info;
    let ticks = info.entry_tsc.saturating_sub(start.enter_tsc);
    let ns = u128::from(ticks) * 1_000_000 / u128::from(machine.tsc_khz.max(1));
    Ok(Duration::from_nanos(u64::try_from(ns)?))
}

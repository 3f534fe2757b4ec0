//! One cached block, by placement.

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::servers::{ALL, BY_KERNEL, LARGE, Servers};
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-read",
    title: "A cached block of a file, by the placement of its servers",
    how: "`pread()` of 4 KiB from a file of 2 MiB, in an order that no cache foresees: median of 1,024. On the base \
          from the page cache of its ext4; on a node of the lightweight kernel by a call to the base \
          (*delegated*), by the kernel from the cache that a file server shares with it (*shared*), by a message to the \
          file server (*F*), which copies from its cache, or, if its own is too small for the file, from that \
          of the block server (*B*) that it asks. `A F | B`: program and file server on one core, block server on another. \
          One of them works at a time, so a computer with two processors can emulate that; but times of an emulator \
          tell little of what it costs to wake another core: `ant-path` counts instructions.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 3,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time("ant-read.base", "ext4 of the base").drawn(),
        time("ant-read.delegated", "the same, delegated")
            .beside("ant-read.base")
            .drawn(),
        time("ant-read.shared", "A F, shared by F")
            .beside("ant-read.base")
            .drawn(),
        time("ant-read.af", "A F, in F's cache")
            .beside("ant-read.base")
            .drawn(),
        time("ant-read.a-f", "A | F, in F's cache")
            .beside("ant-read.af")
            .drawn(),
        time("ant-read.afb", "A F B, in B's cache")
            .beside("ant-read.base")
            .drawn(),
        time("ant-read.af-b", "A F | B")
            .beside("ant-read.afb")
            .drawn(),
        time("ant-read.a-fb", "A | F B")
            .beside("ant-read.afb")
            .drawn(),
        time("ant-read.ab-f", "A B | F")
            .beside("ant-read.afb")
            .drawn(),
        time("ant-read.a-f-b", "A | F | B")
            .beside("ant-read.afb")
            .drawn(),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    let mut servers = Servers::start(inside)?;
    for _ in 0..inside.count {
        let copied = ALL.map(|(row, files)| (row, files.copied()));
        for (row, files) in copied.into_iter().chain([("shared", BY_KERNEL)]) {
            let round = servers.probe(files, (&["blocks"], LARGE, &["reads"]))?;
            inside.record(&format!("ant-read.{row}"), round.median_us)?;
        }
    }
    servers.end()
}

//! One cached block, by placement.

use testbed::base::Finding;
use testbed::host::root::Root;

use super::placement::{self, EACH, Texts, named, numbered};
use super::servers::Way;
use super::site::{Files, LARGE, MACHINE, Site, served};
use super::table::Table;
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

/// Ways of the bytes, with the ids of their rows.
const WAYS: [(Way, Texts); 3] = [
    (Way::Shared, numbered!("ant-read.shared-", "")),
    (Way::Copied, numbered!("ant-read.copied-", "")),
    (Way::FromBlocks, numbered!("ant-read.blocks-", "")),
];
const PEERS: [(&str, Files); 3] = [
    ("ant-read.base", Files::Base),
    ("ant-read.delegated", Files::Delegated),
    ("ant-read.linux-node", Files::LinuxNode),
];

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-read",
    title: "A cached block of a file, by the placement of its servers",
    how: "`pread()` of 4 KiB from a file of 2 MiB, in an order that no cache foresees: median of 1,024. The file is on an NVMe \
          disk, of which the base, a Linux node of one core, and the servers of a node of the lightweight kernel take turns. On the \
          base and the Linux node from the page cache of their ext4; on the node of the lightweight kernel by a call to the \
          base (*delegated*), by the kernel from the cache that the file server shares with it (*shared*), by a message to the \
          file server (*F*), which copies from its cache (*copied*), or, if its own is too small for the file, from that \
          of the block server (*B*) that it asks. The disk driver (*D*) is a server too, with nothing to do then. The \
          placements are the AnT paper's: `AF | B | D` has program and file server on one core, the others on one each. \
          One of them works at a time, so a computer with two processors can emulate that; but times of an emulator \
          tell little of what it costs to wake another core: `ant-path` counts instructions.",
    machine: MACHINE,
    root: Root::Test,
    rounds: 3,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &ROWS,
};

const ROWS: [Row; PEERS.len() + WAYS.len() * placement::COUNT] = {
    const NODE: &str = "ant-read.linux-node";
    Table::new(Unit::Microseconds)
        .peer("ant-read.base", "ext4 of the base", None)
        .peer(NODE, "ext4 of a Linux node", None)
        .peer("ant-read.delegated", "the base's, delegated", Some(NODE))
        .placements(&EACH, (WAYS[0].1, named!("", ", shared")), NODE)
        .drawn()
        .placements(&EACH, (WAYS[1].1, named!("", ", from F's cache")), NODE)
        .placements(&EACH, (WAYS[2].1, named!("", ", from B's cache")), NODE)
        .rows()
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    let mut site = Site::new(inside)?;
    for (row, files) in PEERS {
        measure(inside, &mut site, row, files)?;
    }
    for (way, rows) in WAYS {
        for (place, row) in rows.into_iter().enumerate() {
            measure(inside, &mut site, row, served(place, way))?;
        }
    }
    site.end()
}

fn measure(
    inside: &Inside,
    site: &mut Site<'_>,
    row: &'static str,
    files: Files,
) -> Result<(), Finding> {
    for _ in 0..inside.count {
        let round = site.probe(files, (&["blocks"], LARGE, &["reads"]))?;
        inside.record(row, round.median_us)?;
    }
    Ok(())
}

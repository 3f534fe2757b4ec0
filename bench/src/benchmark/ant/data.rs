//! Reads by their size, and by how the bytes come.

use testbed::base::Finding;
use testbed::host::root::Root;

use super::placement::ONE_CORE;
use super::servers::Way;
use super::site::{LARGE, MACHINE, ONE, Site, served};
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

/// Sizes in bytes, and the ends of the rows' ids.
const SIZES: [(&str, &str); 4] = [
    ("4096", "4k"),
    ("16384", "16k"),
    ("65536", "64k"),
    ("262144", "256k"),
];

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-data",
    title: "Reads by size: copied by a message, or from shared pages; and what moved pages would cost",
    how: "`pread()` of a file of 2 MiB that a file server on the program's core has in its cache. *Copied*: a message, \
          and the server has the kernel copy. *Shared*: the kernel copies from the server's pages by itself. *Moved*: no read, but \
          the least that giving pages away would cost: `mremap()` of as many pages, and new ones in their \
          place, each written once, as the server needs them for what it reads next.",
    machine: MACHINE,
    root: Root::Test,
    rounds: 3,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time("ant-data.copied-4k", "4 KiB, copied").drawn(),
        time("ant-data.shared-4k", "4 KiB, shared")
            .beside("ant-data.copied-4k")
            .drawn(),
        time("ant-data.moved-4k", "4 KiB, moved")
            .beside("ant-data.copied-4k")
            .drawn(),
        time("ant-data.copied-16k", "16 KiB, copied"),
        time("ant-data.shared-16k", "16 KiB, shared").beside("ant-data.copied-16k"),
        time("ant-data.moved-16k", "16 KiB, moved").beside("ant-data.copied-16k"),
        time("ant-data.copied-64k", "64 KiB, copied").drawn(),
        time("ant-data.shared-64k", "64 KiB, shared")
            .beside("ant-data.copied-64k")
            .drawn(),
        time("ant-data.moved-64k", "64 KiB, moved")
            .beside("ant-data.copied-64k")
            .drawn(),
        time("ant-data.copied-256k", "256 KiB, copied"),
        time("ant-data.shared-256k", "256 KiB, shared").beside("ant-data.copied-256k"),
        time("ant-data.moved-256k", "256 KiB, moved").beside("ant-data.copied-256k"),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    let mut site = Site::new(inside)?;
    for _ in 0..inside.count {
        for (way, files) in [("copied", served(ONE_CORE, Way::Copied)), ("shared", ONE)] {
            for (size, row) in SIZES {
                let round = site.probe(files, (&["blocks"], LARGE, &["sized", size]))?;
                inside.record(&format!("ant-data.{way}-{row}"), round.median_us)?;
            }
        }
        for (size, row) in SIZES {
            let round = site.alone(ONE, &["moves", size])?;
            inside.record(&format!("ant-data.moved-{row}"), round.median_us)?;
        }
    }
    site.end()
}

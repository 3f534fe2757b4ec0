//! Bonnie++: large files, then many names.

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::servers::{Files, Servers, measure_each};
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

/// What is compared, by its place among all: ext4 of the base, delegated, one core, two, three.
const PLACES: [usize; 5] = [0, 1, 2, 3, 8];
/// `$0` is the folder of the files.
const CONTENT: &str = "bonnie++ -q -d $0 -s 24M -r 12M -n 0 -f -u root > /dev/null 2>&1";
const NAMES: &str = "bonnie++ -q -d $0 -s 0 -n 1:2000:10:4 -u root > /dev/null 2>&1";

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-bonnieplus",
    title: "Bonnie++, by the placement of its servers",
    how: "Debian's Bonnie++, unmodified, but for sizes that an emulated machine can do: a file of 24 MiB is written, \
          rewritten, read, and accessed at random with synced updates; then 1,024 files of 10 to 2,000 bytes are made, found and \
          deleted, in order and at random. Time of the whole, as of the parts some are over before Bonnie++ tells a rate. On the \
          base on ext4 of its root disk, on a node of the lightweight kernel by calls to the base (*delegated*), or with \
          a file server (*F*) of 16 MiB of cache and a block server (*B*) of 32 MiB, by their cores.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time("ant-bonnieplus.base-content", "content, ext4 of the base").drawn(),
        time("ant-bonnieplus.delegated-content", "content, delegated")
            .beside("ant-bonnieplus.base-content")
            .drawn(),
        time("ant-bonnieplus.af-content", "content, A F on one core")
            .beside("ant-bonnieplus.base-content")
            .drawn(),
        time("ant-bonnieplus.a-f-content", "content, A | F")
            .beside("ant-bonnieplus.af-content")
            .drawn(),
        time("ant-bonnieplus.a-f-b-content", "content, A | F | B")
            .beside("ant-bonnieplus.af-content")
            .drawn(),
        time("ant-bonnieplus.base-names", "names, ext4 of the base").drawn(),
        time("ant-bonnieplus.delegated-names", "names, delegated")
            .beside("ant-bonnieplus.base-names")
            .drawn(),
        time("ant-bonnieplus.af-names", "names, A F on one core")
            .beside("ant-bonnieplus.base-names")
            .drawn(),
        time("ant-bonnieplus.a-f-names", "names, A | F")
            .beside("ant-bonnieplus.af-names")
            .drawn(),
        time("ant-bonnieplus.a-f-b-names", "names, A | F | B")
            .beside("ant-bonnieplus.af-names")
            .drawn(),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Seconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    measure_each(inside, &PLACES, |servers, row, files| {
        measure(inside, servers, row, files)
    })
}

fn measure(
    inside: &Inside,
    servers: &mut Servers<'_>,
    row: &str,
    files: Files,
) -> Result<(), Finding> {
    for (part, script) in [("content", CONTENT), ("names", NAMES)] {
        let took = servers.script(files, script, &[])?;
        inside.record(&format!("ant-bonnieplus.{row}-{part}"), took.as_secs_f64())?;
    }
    Ok(())
}

//! Bonnie++: large files, then many names.

use testbed::base::Finding;
use testbed::host::root::Root;

use super::servers::Way;
use super::site::{Files, MACHINE, Site, served};
use crate::benchmark::{Benchmark, Row, Unit};
use crate::inside::Inside;

/// Ends of the rows' ids, and what is compared: of the placements those on one core, on two and on three.
const PLACES: [(&str, Files); 6] = [
    ("base", Files::Base),
    ("delegated", Files::Delegated),
    ("linux-node", Files::LinuxNode),
    ("1", served(0, Way::Shared)),
    ("4", served(3, Way::Shared)),
    ("11", served(10, Way::Shared)),
];
/// `$0` is the folder of the files.
const CONTENT: &str = "bonnie++ -q -d $0 -s 24M -r 12M -n 0 -f -u root > /dev/null 2>&1";
const NAMES: &str = "bonnie++ -q -d $0 -s 0 -n 1:2000:10:4 -u root > /dev/null 2>&1";

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "ant-bonnieplus",
    title: "Bonnie++, by the placement of its servers",
    how: "Debian's Bonnie++, unmodified, but for sizes that an emulated machine can do: a file of 24 MiB is written, \
          rewritten, read, and accessed at random with synced updates; then 1,024 files of 10 to 2,000 bytes are made, found and \
          deleted, in order and at random. Time of the whole, as of the parts some are over before Bonnie++ tells a rate. On the \
          base and on a Linux node on ext4, on a node of the lightweight kernel by calls to the base (*delegated*), or with \
          a file server (*F*) of 16 MiB of cache, a block server (*B*) of 32 MiB and a disk driver (*D*), by their cores. All \
          have the same NVMe disk, in turn.",
    machine: MACHINE,
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        time("ant-bonnieplus.base-content", "content, ext4 of the base").drawn(),
        time(
            "ant-bonnieplus.linux-node-content",
            "content, ext4 of a Linux node",
        )
        .beside("ant-bonnieplus.base-content")
        .drawn(),
        time("ant-bonnieplus.delegated-content", "content, delegated")
            .beside("ant-bonnieplus.base-content")
            .drawn(),
        time("ant-bonnieplus.1-content", "content, #1 AFBD")
            .beside("ant-bonnieplus.linux-node-content")
            .drawn(),
        time("ant-bonnieplus.4-content", "content, #4 ABD | F")
            .beside("ant-bonnieplus.1-content")
            .drawn(),
        time("ant-bonnieplus.11-content", "content, #11 AD | F | B")
            .beside("ant-bonnieplus.1-content")
            .drawn(),
        time("ant-bonnieplus.base-names", "names, ext4 of the base").drawn(),
        time(
            "ant-bonnieplus.linux-node-names",
            "names, ext4 of a Linux node",
        )
        .beside("ant-bonnieplus.base-names")
        .drawn(),
        time("ant-bonnieplus.delegated-names", "names, delegated")
            .beside("ant-bonnieplus.base-names")
            .drawn(),
        time("ant-bonnieplus.1-names", "names, #1 AFBD")
            .beside("ant-bonnieplus.linux-node-names")
            .drawn(),
        time("ant-bonnieplus.4-names", "names, #4 ABD | F")
            .beside("ant-bonnieplus.1-names")
            .drawn(),
        time("ant-bonnieplus.11-names", "names, #11 AD | F | B")
            .beside("ant-bonnieplus.1-names")
            .drawn(),
    ],
};

const fn time(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Seconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    let mut site = Site::new(inside)?;
    for (row, files) in PLACES {
        for _ in 0..inside.count {
            for (part, script) in [("content", CONTENT), ("names", NAMES)] {
                let took = site.script(files, script, &[])?;
                inside.record(&format!("ant-bonnieplus.{row}-{part}"), took.as_secs_f64())?;
            }
        }
    }
    site.end()
}

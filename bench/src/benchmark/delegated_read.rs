//! Reading a file from the lightweight kernel: the curves of the delegation paper's figures 5 to 8.

use std::fs::File;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, LwkNode, Place};

/// File in memory (tmpfs).
const FILE: &str = "/run/read";
/// Sizes of a read, with the names of the rows.
const SIZES: [(&str, usize); 6] = [
    ("64B", 64),
    ("4KiB", 4 << 10),
    ("64KiB", 64 << 10),
    ("1MiB", 1 << 20),
    ("16MiB", 16 << 20),
    ("64MiB", 64 << 20),
];

/// The rows of one size.
macro_rules! rows {
    ($($size:literal),+) => {
        &[$(
            rate(concat!("delegated-read.linux-fresh.", $size), concat!($size, ": Linux, new memory")),
            rate(concat!("delegated-read.fresh.", $size), concat!($size, ": delegated, new memory"))
                .beside(concat!("delegated-read.linux-fresh.", $size)),
            rate(concat!("delegated-read.linux-ahead.", $size), concat!($size, ": Linux, mapped ahead")),
            rate(concat!("delegated-read.ahead.", $size), concat!($size, ": delegated, mapped ahead"))
                .beside(concat!("delegated-read.linux-ahead.", $size)),
            rate(concat!("delegated-read.linux-reused.", $size), concat!($size, ": Linux, used memory"))
                .drawn(),
            rate(concat!("delegated-read.reused.", $size), concat!($size, ": delegated, used memory"))
                .beside(concat!("delegated-read.linux-reused.", $size))
                .drawn(),
            rate(concat!("delegated-read.copied.", $size), concat!($size, ": delegated, copied"))
                .beside(concat!("delegated-read.linux-reused.", $size)),
        )+
        share("delegated-read.reused-time.1MiB", "1MiB, used memory: time in Linux's").goal(1.0),
        share("delegated-read.reused-time.16MiB", "16MiB, used memory: time in Linux's").goal(1.0),
        share("delegated-read.reused-time.64MiB", "64MiB, used memory: time in Linux's").goal(1.0),
        share("delegated-read.fresh-time.64MiB", "64MiB, new memory: time in Linux's").goal(1.11),
        share("delegated-read.ahead-time.64MiB", "64MiB, mapped ahead: time in Linux's")
            .goal(1.11),
        ]
    };
}

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "delegated-read",
    title: "Reading a file by delegation",
    how: "`read()` of a file in memory (tmpfs), by the same program on a core of the base and on \
          a node of the lightweight kernel, which delegates it to the base. *New* memory is \
          untouched: on Linux each of its pages is a fault within the call; on the node it is a \
          fault of the proxy, for which the node's kernel allocates a frame, mostly one of 2 MiB \
          that it clears first, and maps 64 pages at a time. *Used* memory was read into before, \
          so both kernels have it mapped. *Copied* is the baseline of the paper: the base reads \
          only into 64 KiB that stay mapped, and the program copies them out, piece by piece. \
          *Mapped ahead* is new memory that the program has had mapped before the read \
          (`MADV_POPULATE_WRITE`), on Linux as on the node, which is not part of the time. The \
          paper's goal is 0.9 times Linux's rate, 1.11 times its time. Small sizes are read up to \
          200 times a round, of which the median counts. Copying is 5 to 36 times slower in \
          emulation than on hardware: the cost of delegation looks smaller for it.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: rows!["64B", "4KiB", "64KiB", "1MiB", "16MiB", "64MiB"],
};

const fn rate(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::MegabytesPerSecond)
}

const fn share(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Share)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    fill()?;
    let lwk_node = LwkNode::start(inside, 3)?;
    for _ in 0..inside.count {
        for (name, size) in SIZES {
            let measure = |place, way: &str, row: &str| -> Result<f64, Finding> {
                let round = lwk_node.round(place, &["read", FILE, &size.to_string(), way])?;
                let rate = size as f64 / round.median_us;
                inside.record(&format!("delegated-read.{row}.{name}"), rate)?;
                Ok(round.median_us)
            };
            let linux_fresh = measure(Place::Base(1), "fresh", "linux-fresh")?;
            let fresh = measure(Place::Lwk, "fresh", "fresh")?;
            let linux_ahead = measure(Place::Base(1), "ahead", "linux-ahead")?;
            let ahead = measure(Place::Lwk, "ahead", "ahead")?;
            let linux_reused = measure(Place::Base(1), "reused", "linux-reused")?;
            let reused = measure(Place::Lwk, "reused", "reused")?;
            measure(Place::Lwk, "copied", "copied")?;
            if size >= 1 << 20 {
                let id = format!("delegated-read.reused-time.{name}");
                inside.record(&id, reused / linux_reused)?;
            }
            if name == "64MiB" {
                inside.record("delegated-read.fresh-time.64MiB", fresh / linux_fresh)?;
                inside.record("delegated-read.ahead-time.64MiB", ahead / linux_ahead)?;
            }
        }
    }
    lwk_node.remove()
}

/// Makes the file, with all its pages.
fn fill() -> Result<(), Finding> {
    use std::io::Write;
    let mut file = File::create(FILE)?;
    let piece: Vec<u8> = (0..1 << 20).map(|at: u32| at as u8).collect();
    (0..64).try_for_each(|_| file.write_all(&piece))?;
    Ok(())
}

//! Cache footprint of a system call.

use std::fs;
use std::path::Path;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Counted, Row, Unit};
use crate::inside::{Inside, LwkNode, Place};
use crate::marks::{Count, Kind};

/// File in memory (tmpfs).
const FILE: &str = "/run/bench-file";
const FILE_BYTES: usize = 1 << 20;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "displaced-lines",
    title: "Cache lines that a system call touches",
    how: "Number of distinct cache lines of code and of data that the kernel of a program's core \
          touches for one call, counted by a plugin of the emulator: `fcntl(0, F_GETFD)`, and \
          `read()` of 1 MiB of a file in memory into memory that was read into before. On the \
          base that kernel is Linux, and the data read is included; on the lightweight kernel it \
          is only the path to the proxy's syscall slot and back. The paper of IHK/McKernel \
          instead counts misses of an i7's caches by one delegated call of any length: 65 to 72 \
          in the first-level instruction cache, 44 to 49 in that of data.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: Some(Counted {
        lines: true,
        path_core: None,
        samples,
    }),
    series: &[],
    rows: &[
        lines("displaced-lines.call-plain-code", "fcntl, base: code").drawn(),
        lines("displaced-lines.call-quiet-code", "fcntl, delegated: code")
            .beside("displaced-lines.call-plain-code")
            .drawn(),
        lines("displaced-lines.call-plain-data", "fcntl, base: data").drawn(),
        lines("displaced-lines.call-quiet-data", "fcntl, delegated: data")
            .beside("displaced-lines.call-plain-data")
            .drawn(),
        lines(
            "displaced-lines.read-plain-code",
            "read of 1 MiB, base: code",
        )
        .drawn(),
        lines(
            "displaced-lines.read-quiet-code",
            "read of 1 MiB, delegated: code",
        )
        .beside("displaced-lines.read-plain-code")
        .drawn(),
        lines(
            "displaced-lines.read-plain-data",
            "read of 1 MiB, base: data",
        ),
        lines(
            "displaced-lines.read-quiet-data",
            "read of 1 MiB, delegated: data",
        )
        .beside("displaced-lines.read-plain-data")
        .drawn(),
    ],
};

const fn lines(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Count)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    fs::write(FILE, vec![1; FILE_BYTES])?;
    let lwk_node = LwkNode::start(inside, 3)?;
    for _ in 0..inside.count {
        for (place, kind) in [
            (Place::Base(1), Kind::CallPlain),
            (Place::Lwk, Kind::CallLwk),
            (Place::Base(1), Kind::ReadPlain),
            (Place::Lwk, Kind::ReadLwk),
        ] {
            lwk_node.marked(place, kind, Path::new(FILE))?;
        }
    }
    lwk_node.remove()?;
    Ok(fs::remove_file(FILE)?)
}

fn samples(counts: &[Count]) -> Vec<(&'static str, f64)> {
    let of_one = |count: &Count| {
        let (code, data) = match count.kind {
            Kind::CallPlain => (
                "displaced-lines.call-plain-code",
                "displaced-lines.call-plain-data",
            ),
            Kind::CallLwk => (
                "displaced-lines.call-quiet-code",
                "displaced-lines.call-quiet-data",
            ),
            Kind::ReadPlain => (
                "displaced-lines.read-plain-code",
                "displaced-lines.read-plain-data",
            ),
            Kind::ReadLwk => (
                "displaced-lines.read-quiet-code",
                "displaced-lines.read-quiet-data",
            ),
            _ => return Vec::new(),
        };
        vec![
            (code, count.code_lines as f64),
            (data, count.data_lines as f64),
        ]
    };
    counts.iter().flat_map(of_one).collect()
}

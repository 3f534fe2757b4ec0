//! Instructions of a kernel for a call, and for a program's start.

use std::path::Path;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Counted, Row, Unit};
use crate::inside::{Inside, LwkNode, Place};
use crate::marks::{Count, Kind};

const PROGRAM: &str = "/bin/true";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "call-path",
    title: "Instructions of a system call and of a program's start",
    how: "Instructions that the kernel of a program's core executes, counted by a plugin of the \
          emulator, for `getpid()`, which each kernel executes itself; and for starting and \
          waiting for `/bin/true`, a dynamic program that was started before. On the lightweight \
          kernel the base does the rest of the latter on its own cores, and the polls for its \
          replies are included. The last rows are what the emulator translated meanwhile, of all \
          cores: code executed for the first time, which costs nothing on hardware. Counts do not \
          depend on what else the computer does, but for the polls.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 5,
    inside,
    outside: None,
    counted: Some(Counted {
        lines: false,
        path_core: None,
        samples,
    }),
    series: &[],
    rows: &[
        count("call-path.own-plain", "getpid, base").drawn(),
        count("call-path.own-quiet", "getpid, lightweight kernel")
            .beside("call-path.own-plain")
            .drawn(),
        count("call-path.start-plain", "start, base"),
        count("call-path.start-quiet", "start, lightweight kernel").beside("call-path.start-plain"),
        count("call-path.start-plain-all", "start, all cores, base"),
        count(
            "call-path.start-quiet-all",
            "start, all cores, lightweight kernel",
        )
        .beside("call-path.start-plain-all"),
        count("call-path.start-plain-entries", "its entries, base"),
        count(
            "call-path.start-quiet-entries",
            "its entries, lightweight kernel",
        )
        .beside("call-path.start-plain-entries"),
        count("call-path.start-plain-translated", "translated, base"),
        count(
            "call-path.start-quiet-translated",
            "translated, lightweight kernel",
        )
        .beside("call-path.start-plain-translated"),
    ],
};

const fn count(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Count)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    let lwk_node = LwkNode::start(inside, 3)?;
    for _ in 0..inside.count {
        for (place, kind) in [
            (Place::Base(1), Kind::OwnPlain),
            (Place::Lwk, Kind::OwnLwk),
            (Place::Base(1), Kind::StartPlain),
            (Place::Lwk, Kind::StartLwk),
        ] {
            lwk_node.marked(place, kind, Path::new(PROGRAM))?;
        }
    }
    lwk_node.remove()
}

fn samples(counts: &[Count]) -> Vec<(&'static str, f64)> {
    let of_start = |count: &Count, [own, all, entries, translated]: [&'static str; 4]| {
        vec![
            (own, count.kernel_instructions as f64),
            (all, count.machine.executed as f64),
            (entries, count.kernel_entries as f64),
            (translated, count.machine.translated as f64),
        ]
    };
    let of_one = |count: &Count| match count.kind {
        Kind::OwnPlain => vec![("call-path.own-plain", count.kernel_instructions as f64)],
        Kind::OwnLwk => vec![("call-path.own-quiet", count.kernel_instructions as f64)],
        Kind::StartPlain => of_start(
            count,
            [
                "call-path.start-plain",
                "call-path.start-plain-all",
                "call-path.start-plain-entries",
                "call-path.start-plain-translated",
            ],
        ),
        Kind::StartLwk => of_start(
            count,
            [
                "call-path.start-quiet",
                "call-path.start-quiet-all",
                "call-path.start-quiet-entries",
                "call-path.start-quiet-translated",
            ],
        ),
        _ => Vec::new(),
    };
    counts.iter().flat_map(of_one).collect()
}

//! What the core executes for an interrupt, until the kernel that goes first handles it.

use testbed::base::{Finding, Shape};
use testbed::host::machine::Emulator;
use testbed::host::root::Root;

use super::work::{Owner, Work};
use super::{COMPUTING, CORE, RINGER, WAYS, prepare, start_native};
use crate::benchmark::{Benchmark, Counted, Row, Unit};
use crate::inside::{Inside, pin};
use crate::marks::{Count, Kind};

/// Interrupts counted in a round: they do not differ much.
const RINGS: usize = 200;

pub(in super::super) const BENCHMARK: Benchmark = Benchmark {
    name: "colocation-path",
    title: "Instructions of an interrupt on a core shared by two kernels",
    how: "What a core executes from where an interrupt takes it from a program that computes, until the lightweight \
          kernel handles that, counted by a plugin of the emulator: instructions, and distinct cache lines of 64 \
          bytes, of code and of data; and which of the instructions are this project's, in module, monitor and kernel. *Native*: the core and its program are the lightweight kernel's. *Shared*: they \
          are the base's, by its interrupts or by NMIs; *by the monitor*: they are a confined node's. What the \
          processor does itself is not in the instructions: the delivery of an interrupt, the switch from a guest and into one, \
          the walks of page tables. Counts do not depend on what else the computer does.",
    machine: Shape {
        append: "no5lvl",
        emulator: Emulator::Backports,
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: Some(Counted {
        lines: true,
        path_core: Some(CORE),
        samples,
    }),
    series: &[],
    rows: &[
        count("colocation-path.native", "native").drawn(),
        count("colocation-path.native-own", "of these, our own"),
        count("colocation-path.native-code", "its lines of code"),
        count("colocation-path.native-data", "its lines of data"),
        shared("colocation-path.shared", "shared").drawn(),
        count("colocation-path.shared-own", "of these, our own"),
        lines("colocation-path.shared-code", "its lines of code", CODE),
        lines("colocation-path.shared-data", "its lines of data", DATA),
        shared("colocation-path.nmi", "shared, by NMIs").drawn(),
        count("colocation-path.nmi-own", "of these, our own"),
        lines("colocation-path.nmi-code", "its lines of code", CODE),
        lines("colocation-path.nmi-data", "its lines of data", DATA),
        shared("colocation-path.monitor", "shared, by the monitor").drawn(),
        count("colocation-path.monitor-own", "of these, our own"),
        lines("colocation-path.monitor-code", "its lines of code", CODE),
        lines("colocation-path.monitor-data", "its lines of data", DATA),
    ],
};

/// Rows that others are compared with.
const NATIVE: &str = "colocation-path.native";
const NATIVE_OWN: &str = "colocation-path.native-own";
const CODE: &str = "colocation-path.native-code";
const DATA: &str = "colocation-path.native-data";

const fn count(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Count)
}

const fn shared(id: &'static str, what: &'static str) -> Row {
    count(id, what).beside(NATIVE)
}

const fn lines(id: &'static str, what: &'static str, native: &'static str) -> Row {
    count(id, what).beside(native)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, RINGER)?;
    prepare(inside)?;
    for _ in 0..inside.count {
        let node = start_native(inside)?;
        let work = Work::start(COMPUTING, Owner::Lwk, inside)?;
        node.wait_for_program()?;
        counted(Kind::InterruptNative, || node.ring(RINGS))?;
        drop(work);
        node.remove()?;
        for way in &WAYS {
            way.linux.start(inside)?;
            let node = way.start(inside)?;
            let work = Work::start(COMPUTING, way.linux, inside)?;
            counted(way.kind, || node.ring(RINGS))?;
            drop(work);
            node.remove()?;
            way.linux.end(inside)?;
        }
    }
    Ok(())
}

fn counted(kind: Kind, ring: impl FnOnce() -> Result<Vec<u64>, Finding>) -> Result<(), Finding> {
    kind.begin();
    let rung = ring();
    kind.end();
    rung.map(drop)
}

fn samples(counts: &[Count]) -> Vec<(&'static str, f64)> {
    let of_one = |count: &Count| {
        let ids = match count.kind {
            Kind::InterruptNative => [NATIVE, NATIVE_OWN, CODE, DATA],
            Kind::InterruptShared => [
                "colocation-path.shared",
                "colocation-path.shared-own",
                "colocation-path.shared-code",
                "colocation-path.shared-data",
            ],
            Kind::InterruptNmi => [
                "colocation-path.nmi",
                "colocation-path.nmi-own",
                "colocation-path.nmi-code",
                "colocation-path.nmi-data",
            ],
            Kind::InterruptMonitor => [
                "colocation-path.monitor",
                "colocation-path.monitor-own",
                "colocation-path.monitor-code",
                "colocation-path.monitor-data",
            ],
            _ => return Vec::new(),
        };
        let values = [
            count.kernel_instructions,
            count.our_instructions,
            count.code_lines,
            count.data_lines,
        ];
        ids.into_iter()
            .zip(values.map(|value| value as f64))
            .collect()
    };
    counts.iter().flat_map(of_one).collect()
}

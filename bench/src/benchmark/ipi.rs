//! An interrupt from one core of the base to another.

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, OtherCore, pin};
use crate::trips::Trips;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "ipi",
    title: "An interrupt to another core and back",
    how: "Lower bound of any doorbell: `membarrier()` interrupts the other core on which a thread \
          of the process runs, and waits until the interrupt has been handled there. The peer is \
          the same system call when it interrupts nobody. Each round is 2,000 calls; the figures \
          are of the rounds' medians and 99th percentiles.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 5,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        trip("ipi.round-trip", "interrupt and its answer, median")
            .beside("ipi.call")
            .drawn(),
        trip("ipi.round-trip-p99", "the same, 99th percentile").beside("ipi.call-p99"),
        trip("ipi.call", "the system call alone, median").drawn(),
        trip("ipi.call-p99", "the same, 99th percentile"),
    ],
};

const fn trip(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, 0)?;
    let other = OtherCore::start(1)?;
    for _ in 0..inside.count {
        Trips::measure(|| Ok(other.interrupt()?))?.record(inside, "ipi.round-trip")?;
        Trips::measure(|| Ok(other.query()?))?.record(inside, "ipi.call")?;
    }
    Ok(())
}

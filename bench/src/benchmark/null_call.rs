//! System calls that do nothing.

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, LwkNode, OtherCore, Place, pin};
use crate::trips::Trips;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "null-call",
    title: "A system call that does nothing",
    how: "The same program makes `getpid()` and `fcntl(0, F_GETFD)` on a core of the base and on \
          a node of the lightweight kernel, whose kernel executes the first itself (*local*) and \
          delegates the second to the base (*delegated*): a cache line to the proxy's syscall \
          slot and one back, both sides polling. Each call is timed by the time stamp counter, \
          which is part of each figure. An interrupt to another core and back (see `ipi`) is \
          measured in the same rounds; the goal is three of them. Each round is 2,000 calls; the \
          figures are of the rounds' medians and 99th percentiles.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 5,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        call("null-call.linux", "getpid on the base, median").drawn(),
        call("null-call.linux-p99", "the same, 99th percentile"),
        call("null-call.lwk", "getpid on the lightweight kernel, median")
            .beside("null-call.linux")
            .drawn(),
        call("null-call.lwk-p99", "the same, 99th percentile").beside("null-call.linux-p99"),
        call("null-call.linux-fcntl", "fcntl on the base, median").drawn(),
        call("null-call.linux-fcntl-p99", "the same, 99th percentile"),
        call("null-call.delegated", "fcntl delegated, median")
            .beside("null-call.linux-fcntl")
            .drawn(),
        call("null-call.delegated-p99", "the same, 99th percentile")
            .beside("null-call.linux-fcntl-p99"),
        call("null-call.ipi", "an interrupt and its answer, median").drawn(),
        call("null-call.ipi-p99", "the same, 99th percentile"),
        Row::time(
            "null-call.delegated-ipis",
            "fcntl delegated, in interrupts and answers",
            "",
        )
        .unit(Unit::Share)
        .goal(3.0),
    ],
};

const fn call(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    let lwk_node = LwkNode::start(inside, 3)?;
    for _ in 0..inside.count {
        measure(inside, &lwk_node, Place::Base(1), "linux", "getpid")?;
        measure(inside, &lwk_node, Place::Lwk, "lwk", "getpid")?;
        measure(inside, &lwk_node, Place::Base(1), "linux-fcntl", "fcntl")?;
        let delegated_us = measure(inside, &lwk_node, Place::Lwk, "delegated", "fcntl")?;
        let ipi = interrupts()?;
        ipi.record(inside, "null-call.ipi")?;
        inside.record("null-call.delegated-ipis", delegated_us / ipi.median_us())?;
    }
    lwk_node.remove()
}

fn measure(
    inside: &Inside,
    lwk_node: &LwkNode<'_>,
    place: Place,
    row: &str,
    call: &str,
) -> Result<f64, Finding> {
    let round = lwk_node.round(place, &["call", call])?;
    inside.record(&format!("null-call.{row}"), round.median_us)?;
    inside.record(&format!("null-call.{row}-p99"), round.p99_us)?;
    Ok(round.median_us)
}

/// Interrupts from a thread of its own, so that this process's other threads are not bound to its
/// core.
fn interrupts() -> Result<Trips, Finding> {
    let measured = std::thread::spawn(|| {
        pin(0, 0)?;
        let other = OtherCore::start(1)?;
        Trips::measure(|| Ok(other.interrupt()?))
    });
    let failed = |_| Finding::new("measuring interrupts failed");
    measured.join().map_err(failed)?
}

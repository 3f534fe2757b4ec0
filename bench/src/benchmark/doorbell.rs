//! Round trips from the base to a node and back.

use testbed::peer::Request;
use testbed::root::Root;
use testbed::scenario::{Finding, Shape};

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, Peer, Pipes, pin};
use crate::trips::Trips;

const KERNEL: &str = "6.12";
/// What goes there and back, in bytes.
const SIZE: usize = 32;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "doorbell",
    title: "Messages there and back",
    how: "A message of 32 bytes goes from a process of the base to one of a node of 6.12 and back. \
          *Polling*: both look at the rings all the time. *Sleeping*: both sleep for each message \
          and are woken by a doorbell, so a trip is two sleeps, two interrupts between kernels and \
          two wake-ups. Beside it a pair of pipes to a process on another core of the base. Each \
          round is 2,000 trips; the figures are of the rounds' medians and 99th percentiles.",
    machine: Shape::USUAL,
    root: Root::Test,
    inside,
    outside: None,
    rows: &[
        trip("doorbell.polling", "both poll, median")
            .beside("doorbell.pipe")
            .drawn(),
        trip("doorbell.polling-p99", "both poll, 99th percentile").beside("doorbell.pipe-p99"),
        trip("doorbell.sleeping", "both sleep, median")
            .beside("doorbell.pipe")
            .drawn(),
        trip("doorbell.sleeping-p99", "both sleep, 99th percentile").beside("doorbell.pipe-p99"),
        trip(
            "doorbell.pipe",
            "pipes between two processes of the base, median",
        )
        .drawn(),
        trip("doorbell.pipe-p99", "pipes, 99th percentile"),
    ],
};

const fn trip(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, 0)?;
    let mut peer = Peer::start(inside, KERNEL)?;
    let mut pipes = Pipes::start(1)?;
    for _ in 0..inside.count {
        for (way, polls) in [("polling", u32::MAX), ("sleeping", 0)] {
            peer.set_polls(polls)?;
            let trips = Trips::measure(|| {
                peer.ask(Request::Echo, &[7; SIZE])?;
                Ok(peer.receive(&mut [0; SIZE]).map(drop)?)
            })?;
            trips.record(inside, &format!("doorbell.{way}"))?;
        }
        // Who polls would take the processor from those who sleep.
        peer.set_polls(0)?;
        let trips = Trips::measure(|| Ok(pipes.echo(&mut [7; SIZE])?))?;
        trips.record(inside, "doorbell.pipe")?;
    }
    peer.remove()
}

//! Round trips from the base to a node and back.

use std::time::{Duration, Instant};

use testbed::peer::Request;
use testbed::root::Root;
use testbed::scenario::{Finding, Shape};

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, Peer, Pipes, pin};

const KERNEL: &str = "6.12";
/// Round trips in each round, and those before that are not counted.
const TRIPS: usize = 2000;
const WARM: usize = 200;
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
            measure(inside, way, || {
                peer.ask(Request::Echo, &[7; SIZE])?;
                Ok(peer.receive(&mut [0; SIZE]).map(drop)?)
            })?;
        }
        // Who polls would take the processor from those who sleep.
        peer.set_polls(0)?;
        measure(inside, "pipe", || Ok(pipes.echo(&mut [7; SIZE])?))?;
    }
    peer.remove()
}

fn measure(
    inside: &Inside,
    way: &str,
    mut trip: impl FnMut() -> Result<(), Finding>,
) -> Result<(), Finding> {
    (0..WARM).try_for_each(|_| trip())?;
    let mut times = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let began = Instant::now();
        trip()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    inside.record(&format!("doorbell.{way}"), us(times[TRIPS / 2]))?;
    inside.record(&format!("doorbell.{way}-p99"), us(times[TRIPS * 99 / 100]))
}

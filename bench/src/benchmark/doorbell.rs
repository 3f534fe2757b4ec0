//! Round trips from the base to a node and back.

use testbed::peer::Request;
use testbed::root::Root;
use testbed::scenario::{Finding, Shape};

use super::{Benchmark, Row, Unit};
use crate::inside::{Events, Guest, Inside, Peer, Pipes, pin};
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
          two wake-ups; on the emulated machine each core that has nothing to do is a thread that \
          sleeps, and to wake it costs tens of microseconds, in the figures of pipes and eventfds as \
          well. Beside it what a process on another core of the base is talked to by: a \
          pair of pipes, and a pair of eventfds, which carry no bytes; and what a kernel in a \
          virtual machine is talked to by: a socket (virtio-vsock, served by vhost) to a guest of \
          6.12 under KVM, its processor on a core of the base, inside the emulated machine. Each \
          entry to a guest and each exit is emulated there and dearer than on hardware, so the \
          last figure is too high by an amount that only hardware can tell. Each round is 2,000 \
          trips; the figures are of the rounds' medians and 99th percentiles.",
    machine: Shape::USUAL,
    root: Root::Bench,
    rounds: 4,
    inside,
    outside: None,
    counted: None,
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
        trip(
            "doorbell.eventfd",
            "eventfds between two processes of the base, median",
        )
        .drawn(),
        trip("doorbell.eventfd-p99", "eventfds, 99th percentile"),
        trip(
            "doorbell.vsock",
            "virtio-vsock to a guest of KVM, inside, median",
        )
        .beside("doorbell.sleeping")
        .drawn(),
        trip("doorbell.vsock-p99", "virtio-vsock, 99th percentile").beside("doorbell.sleeping-p99"),
    ],
};

const fn trip(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, 0)?;
    let mut peer = Peer::start(inside, KERNEL)?;
    let mut pipes = Pipes::start(1)?;
    let events = Events::start(1)?;
    let mut guest = Guest::start(inside, KERNEL, 1)?;
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
        Trips::measure(|| Ok(events.echo()?))?.record(inside, "doorbell.eventfd")?;
        let trips = Trips::measure(|| Ok(guest.echo(&mut [7; SIZE])?))?;
        trips.record(inside, "doorbell.vsock")?;
    }
    peer.remove()
}

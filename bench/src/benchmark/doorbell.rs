//! Round trips from the base to a node and back.

use std::io;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;
use testbed::node::peer::Request;

use super::{Benchmark, Row, Unit};
use crate::inside::{Events, Guest, Inside, Peer, Pipes, PolledRings, pin};
use crate::trips::Trips;

const KERNEL: &str = "6.12";
/// Cores of this process and of the other one on the base.
const OWN_CORE: usize = 0;
const PROCESS_CORE: usize = 1;
/// Cores of the guest's processor, which is otherwise idle, and of the node.
const GUEST_CORE: usize = 2;
const NODE_CORE: usize = 3;
/// Size of a message, in bytes.
const SIZE: usize = 32;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "doorbell",
    title: "Messages there and back",
    how: "A message of 32 bytes goes from a process of the base to one of a node of 6.12 and \
          back. *Polling*: both sides poll, and neither sleeps: the rings of a channel to the \
          node; the same rings in memory shared with a process on another core of the base; and a \
          pair of pipes to such a process, which takes system calls. *Sleeping*: both sides sleep \
          for each message and are woken. In a channel a doorbell does that, so a trip is two \
          sleeps, two interrupts between kernels and two wake-ups. The peers are a pair of pipes \
          to a process on another core of the base; a pair of eventfds, which carry no bytes; and \
          the usual way to a kernel in a virtual machine: a socket (virtio-vsock, served by \
          vhost) to a guest of 6.12 under KVM inside the emulated machine, whose processor has a \
          core of its own, as the node has (`isolcpus=domain`). On the emulated machine an idle \
          core is a thread that sleeps, and to wake it costs tens of microseconds, in all figures \
          of those that sleep. Each entry to a guest and each exit is emulated there and slower \
          than on hardware, so the last figure is too high by an unknown amount. Each round is \
          2,000 trips; the figures are of the rounds' medians and 99th percentiles.",
    machine: Shape {
        append: "isolcpus=domain,2",
        ..Shape::USUAL
    },
    root: Root::Bench,
    rounds: 4,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        trip("doorbell.polling", "polling: a channel to a node, median")
            .beside("doorbell.rings")
            .drawn(),
        trip("doorbell.polling-p99", "the same, 99th percentile").beside("doorbell.rings-p99"),
        trip(
            "doorbell.rings",
            "polling: the same rings between two processes of the base, median",
        )
        .drawn(),
        trip("doorbell.rings-p99", "the same, 99th percentile"),
        trip(
            "doorbell.polled-pipe",
            "polling: pipes between two processes of the base, median",
        )
        .beside("doorbell.rings")
        .drawn(),
        trip("doorbell.polled-pipe-p99", "the same, 99th percentile").beside("doorbell.rings-p99"),
        trip("doorbell.sleeping", "sleeping: a channel to a node, median")
            .beside("doorbell.pipe")
            .drawn(),
        trip("doorbell.sleeping-p99", "the same, 99th percentile").beside("doorbell.pipe-p99"),
        trip(
            "doorbell.pipe",
            "sleeping: pipes between two processes of the base, median",
        )
        .drawn(),
        trip("doorbell.pipe-p99", "the same, 99th percentile"),
        trip(
            "doorbell.eventfd",
            "sleeping: eventfds between two processes of the base, median",
        )
        .drawn(),
        trip("doorbell.eventfd-p99", "the same, 99th percentile"),
        trip(
            "doorbell.vsock",
            "sleeping: virtio-vsock to a guest of KVM, inside, median",
        )
        .beside("doorbell.sleeping")
        .drawn(),
        trip("doorbell.vsock-p99", "the same, 99th percentile").beside("doorbell.sleeping-p99"),
    ],
};

const fn trip(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    pin(0, OWN_CORE)?;
    let mut peer = Peer::start(inside, KERNEL, NODE_CORE)?;
    let mut guest = Guest::start(inside, KERNEL, GUEST_CORE)?;
    for _ in 0..inside.count {
        polling(inside, &mut peer)?;
        sleeping(inside, &mut peer, &mut guest)?;
    }
    peer.remove()
}

fn polling(inside: &Inside, peer: &mut Peer<'_>) -> Result<(), Finding> {
    peer.set_polls(u32::MAX)?;
    node(inside, peer, "polling")?;
    // A polling node would take the host's cores from the next measurements.
    peer.set_polls(0)?;
    let mut rings = PolledRings::start(PROCESS_CORE)?;
    trips(inside, "rings", || rings.echo(&mut [7; SIZE]))?;
    drop(rings);
    let mut pipes = Pipes::polling(PROCESS_CORE)?;
    trips(inside, "polled-pipe", || pipes.echo_polling(&mut [7; SIZE]))
}

fn sleeping(inside: &Inside, peer: &mut Peer<'_>, guest: &mut Guest) -> Result<(), Finding> {
    node(inside, peer, "sleeping")?;
    let mut pipes = Pipes::start(PROCESS_CORE)?;
    trips(inside, "pipe", || pipes.echo(&mut [7; SIZE]))?;
    let events = Events::start(PROCESS_CORE)?;
    trips(inside, "eventfd", || events.echo())?;
    trips(inside, "vsock", || guest.echo(&mut [7; SIZE]))
}

fn node(inside: &Inside, peer: &mut Peer<'_>, row: &str) -> Result<(), Finding> {
    let trips = Trips::measure(|| {
        peer.request(Request::Echo, &[7; SIZE])?;
        Ok(peer.receive(&mut [0; SIZE]).map(drop)?)
    })?;
    trips.record(inside, &format!("doorbell.{row}"))
}

fn trips(
    inside: &Inside,
    row: &str,
    mut trip: impl FnMut() -> io::Result<()>,
) -> Result<(), Finding> {
    let trips = Trips::measure(|| Ok(trip()?))?;
    trips.record(inside, &format!("doorbell.{row}"))
}

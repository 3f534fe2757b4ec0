//! TCP between base and nodes.

use std::process::{Child, Command, Stdio};
use std::thread;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::inside::{
    FOLDER, GUEST_ADDRESS, INSIDE_PROBE, Inside, NAMESPACE_ADDRESS, NetworkGuest, in_namespace,
    make_namespace, probed_s,
};
use crate::tcp::{self, Echo};
use crate::trips::Trips;

const KERNEL: &str = "6.12";
const IMAGE: &str = "living";
/// The node with the server, and the one with the client.
const SERVER: &str = "server";
const CLIENT: &str = "client";
/// Cores of the nodes, and core of the guest's processor, which is otherwise idle. The base has two
/// more in either case.
const NODE_CORES: [&str; 2] = ["2", "3"];
const GUEST_CORE: usize = 4;
/// What the server's node runs.
const SERVES: [&str; 3] = ["--", INSIDE_PROBE, "serve"];
/// Microseconds for which a node's packets are looked for.
const POLL_US: &str = "100";
const LOOPBACK: &str = "127.0.0.1";
const STREAM_BYTES: usize = 32 << 20;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "net",
    title: "TCP between base and nodes",
    how: "*Trip*: one byte to a server and back, 2,000 times in each round; the figures are of \
          the rounds' medians and 99th percentiles. *Stream*: 32 MiB one way, until the server \
          has received them all. The server is the same program in each place: a Linux node of \
          one core (virtio-net over insula's channels, vhost-net and a bridge on the base), a \
          network namespace of the base at the other end of a veth pair, which is a container's \
          network, the base itself over loopback, and a guest of KVM inside the emulated machine \
          with a core of its own (`isolcpus=domain`), as each node has, and a card that vhost-net \
          serves by a tap: the base has two more cores for all of them. Nested paging and the SVM \
          instructions are QEMU's emulation there, so the guest's figures are too bad by an \
          unknown amount. In the stream between two nodes the client is in a node, too. \
          *Doorbells* are the interrupts between the two kernels, both directions together, for a \
          trip, in which four queues are signalled. *Polled*: the same node, of which the base (`--network-poll-us 100`) and the \
          node's kernel (`net.core.busy_read`) look for packets for 100 us before they wait. *Two streams*: each of \
          half as many bytes, together, to a node with a pair of queues for each of its cores.",
    machine: Shape {
        cpus: 5,
        append: "isolcpus=domain,4",
        ..Shape::USUAL
    },
    root: Root::Bench,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        trip("net.trip.node", "there and back, base and node")
            .beside("net.trip.veth")
            .drawn(),
        trip("net.trip.node-p99", "the same, 99th percentile").beside("net.trip.veth-p99"),
        trip("net.trip.veth", "there and back, veth pair").drawn(),
        trip("net.trip.veth-p99", "the same, 99th percentile"),
        trip("net.trip.kvm", "there and back, base and KVM guest")
            .beside("net.trip.node")
            .drawn(),
        trip("net.trip.kvm-p99", "the same, 99th percentile").beside("net.trip.node-p99"),
        trip("net.trip.loopback", "there and back, loopback").drawn(),
        trip("net.trip.loopback-p99", "the same, 99th percentile"),
        Row::time("net.doorbells", "doorbells for a trip to a node", "").unit(Unit::Count),
        trip("net.trip.polled", "there and back, base and node, polled")
            .beside("net.trip.node")
            .drawn(),
        trip("net.trip.polled-p99", "the same, 99th percentile").beside("net.trip.node-p99"),
        Row::time("net.doorbells-polled", "doorbells for a trip, polled", "")
            .unit(Unit::Count)
            .beside("net.doorbells"),
        stream("net.stream.polled", "stream, base to node, polled").beside("net.stream.veth"),
        stream("net.stream.node", "stream, base to node").beside("net.stream.veth"),
        stream("net.stream.nodes", "stream, node to node").beside("net.stream.veth"),
        stream("net.stream.veth", "stream, veth pair"),
        stream("net.stream.kvm", "stream, base to KVM guest").beside("net.stream.node"),
        stream("net.stream.loopback", "stream, loopback"),
        stream(
            "net.streams.node",
            "two streams at once, base to a node of two cores",
        )
        .beside("net.streams.veth"),
        stream("net.streams.veth", "two streams at once, veth pair"),
    ],
};

const fn trip(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Microseconds)
}

const fn stream(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::MegabytesPerSecond)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.build_image(IMAGE, KERNEL)?;
    make_namespace()?;
    let probe = format!("{FOLDER}{INSIDE_PROBE}");
    let _in_namespace = Server::start(in_namespace().arg(&probe))?;
    let _in_base = Server::start(&mut Command::new(&probe))?;
    let _in_guest = NetworkGuest::start(inside, KERNEL, GUEST_CORE)?;
    start_node(inside, (SERVER, NODE_CORES[0]), &SERVES)?;
    start_node(inside, (CLIENT, NODE_CORES[1]), &[])?;
    for _ in 0..inside.count {
        trips(inside)?;
        streams(inside)?;
    }
    inside.command.run(&["rm", "--force", SERVER])?;
    let polls = [&["--network-poll-us", POLL_US], &SERVES[..]].concat();
    start_node(inside, (SERVER, NODE_CORES[0]), &polls)?;
    polled(inside)?;
    let nodes = ["rm", "--force", SERVER, CLIENT];
    inside.command.run(&nodes)?;
    start_node(inside, (SERVER, &NODE_CORES.join(",")), &SERVES)?;
    for _ in 0..inside.count {
        let node = inside.address_of(SERVER)?;
        for (way, address) in [("node", node.as_str()), ("veth", NAMESPACE_ADDRESS)] {
            let row = format!("net.streams.{way}");
            inside.record(&row, streams_at_once(inside, address)?)?;
        }
    }
    inside.command.run(&["rm", "--force", SERVER]).map(drop)
}

/// The rate of two streams together, in MB/s.
fn streams_at_once(inside: &Inside, address: &str) -> Result<f64, Finding> {
    let khz = f64::from(inside.driver.machine()?.0.tsc_khz);
    let half = || tcp::stream(address, STREAM_BYTES / 2);
    let (one, other) = thread::scope(|scope| {
        let other = scope.spawn(half);
        (half(), other.join())
    });
    let other = other.map_err(|_| Finding::new("a stream has panicked"))??;
    Ok(rate(one?.max(other) as f64 / 1e3 / khz))
}

fn start_node(inside: &Inside, (name, core): (&str, &str), more: &[&str]) -> Result<(), Finding> {
    let of_all = ["run", "--image", IMAGE, "--memory", "256M", "--network"];
    let own = ["--cpu-list", core, "--name", name];
    inside
        .command
        .run(&[&of_all[..], &own, more].concat())
        .map(drop)
}

/// The same of a node that is polled, and polls.
fn polled(inside: &Inside) -> Result<(), Finding> {
    let set = format!("echo {POLL_US} > /proc/sys/net/core/busy_read");
    inside
        .command
        .run(&["exec", SERVER, "--", "/bin/busybox", "sh", "-c", &set])?;
    let node = inside.address_of(SERVER)?;
    let khz = f64::from(inside.driver.machine()?.0.tsc_khz);
    for _ in 0..inside.count {
        let mut echo = Echo::connect(&node)?;
        let before = doorbells(inside)?;
        let trips = measure(&mut echo)?;
        let doorbells_sent = doorbells(inside)? - before;
        trips.record(inside, "net.trip.polled")?;
        inside.record("net.doorbells-polled", doorbells_sent / Trips::COUNT as f64)?;
        let ticks = tcp::stream(&node, STREAM_BYTES)? as f64;
        inside.record("net.stream.polled", rate(ticks / 1e3 / khz))?;
    }
    Ok(())
}

/// A server on the base, until this is dropped.
struct Server(Child);

impl Server {
    fn start(probe: &mut Command) -> Result<Self, Finding> {
        let probe = probe.arg("serve").stdin(Stdio::null());
        Ok(Self(probe.spawn()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn trips(inside: &Inside) -> Result<(), Finding> {
    let node = inside.address_of(SERVER)?;
    let mut echo = Echo::connect(&node)?;
    let before = doorbells(inside)?;
    let to_node = measure(&mut echo)?;
    let doorbells_sent = doorbells(inside)? - before;
    to_node.record(inside, "net.trip.node")?;
    inside.record("net.doorbells", doorbells_sent / Trips::COUNT as f64)?;
    measure(&mut Echo::connect(NAMESPACE_ADDRESS)?)?.record(inside, "net.trip.veth")?;
    measure(&mut Echo::connect(GUEST_ADDRESS)?)?.record(inside, "net.trip.kvm")?;
    measure(&mut Echo::connect(LOOPBACK)?)?.record(inside, "net.trip.loopback")
}

fn measure(echo: &mut Echo) -> Result<Trips, Finding> {
    let mut byte = [7];
    Trips::measure(|| Ok(echo.trip(&mut byte)?))
}

fn streams(inside: &Inside) -> Result<(), Finding> {
    let node = inside.address_of(SERVER)?;
    let khz = f64::from(inside.driver.machine()?.0.tsc_khz);
    for (way, address) in [
        ("node", node.as_str()),
        ("veth", NAMESPACE_ADDRESS),
        ("kvm", GUEST_ADDRESS),
        ("loopback", LOOPBACK),
    ] {
        let ticks = tcp::stream(address, STREAM_BYTES)? as f64;
        inside.record(&format!("net.stream.{way}"), rate(ticks / 1e3 / khz))?;
    }
    let bytes = STREAM_BYTES.to_string();
    let mut from_node = inside.command.prepare();
    from_node.args(["exec", CLIENT, "--", INSIDE_PROBE, "stream", &node, &bytes]);
    inside.record("net.stream.nodes", rate(probed_s(inside, &mut from_node)?))
}

/// Rate in MB/s.
fn rate(seconds: f64) -> f64 {
    STREAM_BYTES as f64 / 1e6 / seconds
}

/// Doorbell interrupts so far, of the base and of the node.
fn doorbells(inside: &Inside) -> Result<f64, Finding> {
    let words = [
        "exec",
        SERVER,
        "--",
        "/bin/busybox",
        "cat",
        "/proc/interrupts",
    ];
    let of_node = inside.command.run(&words)?;
    let of_base = std::fs::read_to_string("/proc/interrupts")?;
    let lines = of_node.lines().chain(of_base.lines());
    let lines = lines.filter(|line| line.trim_end().ends_with(" insula"));
    let counts = lines.flat_map(|line| line.split_ascii_whitespace().skip(1));
    Ok(counts.filter_map(|word| word.parse::<f64>().ok()).sum())
}

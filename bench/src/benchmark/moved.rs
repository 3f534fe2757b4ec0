//! Moving a server between kernels under its clients.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testbed::base::{Finding, Shape};
use testbed::host::payload::equipment::CRIU_PATH;
use testbed::host::root::Root;

use super::{Benchmark, Row, Unit};
use crate::held::Clients;
use crate::inside::{Inside, NAMESPACE_ADDRESS, PROBE, in_namespace, make_namespace, run};

/// The Linux nodes, by their kernels' versions, and that of the lightweight kernel.
const NODES: [&str; 2] = ["6.1", "6.12"];
const QUIET: &str = "quiet";
const NAME: &str = "held";
/// The probe, where base and nodes have it: the nodes' root is the base's disk.
const PROGRAM: &str = "/var/tmp/probe";
/// CRIU's images, in memory.
const IMAGES: &str = "/run/images";
/// What CRIU asks the kernel about sockets by.
const DIAGNOSES: &str =
    "tcp_diag udp_diag unix_diag raw_diag inet_diag netlink_diag af_packet_diag";

/// A server that is moved.
struct Case {
    /// Its part of the rows' ids.
    name: &'static str,
    connections: usize,
    memory_mib: usize,
}

impl Case {
    /// Whether plain CRIU moves it beside: it locks each connection by runs of iptables, four of them, which takes
    /// an emulated machine many minutes for a thousand.
    const fn is_beside_criu(&self) -> bool {
        self.connections < 1000
    }
}

const fn case(name: &'static str, connections: usize, memory_mib: usize) -> Case {
    Case {
        name,
        connections,
        memory_mib,
    }
}

/// Memory that is not copied before: that would be no less work than the rest.
const SMALL_MIB: usize = 10;
const CASES: [Case; 5] = [
    case("1", 1, 10),
    case("100", 100, 10),
    case("1000", 1000, 10),
    case("100M", 1, 100),
    case("1G", 1, 1024),
];

macro_rules! gap {
    ($way:literal, $case:literal, $what:literal) => {
        Row::time(concat!("move.gap.", $way, "-", $case), $what, "")
    };
}

macro_rules! still {
    ($way:literal, $case:literal, $what:literal) => {
        Row::time(concat!("move.still.", $way, "-", $case), $what, "")
    };
}

macro_rules! share {
    ($way:literal, $case:literal, $what:literal, $goal:literal) => {
        Row::time(concat!("move.share.", $way, "-", $case), $what, "")
            .unit(Unit::Share)
            .goal($goal)
    };
}

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "move",
    title: "Moving a server between kernels under its clients",
    how: "A server of one thread, which holds so many connections and so much memory, none of it zeros; clients on the \
          base send a byte on one connection after another, and wait for it. The *gap* is the longest time that an \
          answer took, the move included. From a Linux node of 6.1 to one of 6.12 and back by `insula move`; from the \
          base to a node of the lightweight kernel and back by `insula move PID`; with much memory also from node to node by \
          `insula move --pre-copy`, which copies it before the server stands still; and, beside, dumped and restored on \
          the base by plain CRIU of the same version, with its default network lock and images in memory. A container \
          *stands still* from the request to dump it until it goes on, a process is stopped until it runs again. \
          The *share* is of CRIU's gap in the same round.",
    machine: Shape {
        cpus: 5,
        memory_mib: 11264,
        ..Shape::USUAL
    },
    root: Root::Bench,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        gap!("node", "1", "gap, node to node, 1 connection, 10 MiB")
            .beside("move.gap.criu-1")
            .drawn(),
        gap!("node", "100", "the same, 100 connections").beside("move.gap.criu-100"),
        gap!("node", "1000", "the same, 1,000 connections"),
        gap!("node", "100M", "the same, 1 connection, 100 MiB").beside("move.gap.criu-100M"),
        gap!("node", "1G", "the same, 1 connection, 1 GiB").beside("move.gap.criu-1G"),
        gap!(
            "copied",
            "100M",
            "gap, node to node, memory copied before, 1 connection, 100 MiB"
        )
        .beside("move.gap.criu-100M"),
        gap!("copied", "1G", "the same, 1 GiB").beside("move.gap.criu-1G"),
        gap!(
            "lwk",
            "1",
            "gap, base to lightweight kernel, 1 connection, 10 MiB"
        )
        .beside("move.gap.criu-1")
        .drawn(),
        gap!("lwk", "100", "the same, 100 connections").beside("move.gap.criu-100"),
        gap!("lwk", "1000", "the same, 1,000 connections"),
        gap!("lwk", "100M", "the same, 1 connection, 100 MiB").beside("move.gap.criu-100M"),
        gap!("lwk", "1G", "the same, 1 connection, 1 GiB").beside("move.gap.criu-1G"),
        gap!(
            "base",
            "1",
            "gap, lightweight kernel to base, 1 connection, 10 MiB"
        )
        .beside("move.gap.criu-1")
        .drawn(),
        gap!("base", "100", "the same, 100 connections").beside("move.gap.criu-100"),
        gap!("base", "1000", "the same, 1,000 connections"),
        gap!("base", "100M", "the same, 1 connection, 100 MiB").beside("move.gap.criu-100M"),
        gap!("base", "1G", "the same, 1 connection, 1 GiB").beside("move.gap.criu-1G"),
        gap!(
            "criu",
            "1",
            "gap, plain CRIU on the base, 1 connection, 10 MiB"
        )
        .drawn(),
        gap!("criu", "100", "the same, 100 connections"),
        gap!("criu", "100M", "the same, 1 connection, 100 MiB"),
        gap!("criu", "1G", "the same, 1 connection, 1 GiB"),
        still!(
            "node",
            "1",
            "stands still, node to node, 1 connection, 10 MiB"
        ),
        still!("node", "100", "the same, 100 connections"),
        still!("node", "1000", "the same, 1,000 connections"),
        still!("node", "100M", "the same, 1 connection, 100 MiB"),
        still!("node", "1G", "the same, 1 connection, 1 GiB"),
        still!(
            "copied",
            "100M",
            "stands still, node to node, memory copied before, 1 connection, 100 MiB"
        ),
        still!("copied", "1G", "the same, 1 GiB"),
        still!(
            "lwk",
            "1",
            "stopped, base to lightweight kernel, 1 connection, 10 MiB"
        ),
        still!("lwk", "100", "the same, 100 connections"),
        still!("lwk", "1000", "the same, 1,000 connections"),
        still!("lwk", "100M", "the same, 1 connection, 100 MiB"),
        still!("lwk", "1G", "the same, 1 connection, 1 GiB"),
        share!(
            "node",
            "1",
            "of CRIU's gap, node to node, 1 connection, 10 MiB",
            0.2
        ),
        share!("node", "100", "the same, 100 connections", 0.2),
        share!("node", "100M", "the same, 1 connection, 100 MiB", 0.2),
        share!("node", "1G", "the same, 1 connection, 1 GiB", 0.2),
        share!(
            "copied",
            "100M",
            "of CRIU's gap, memory copied before, 1 connection, 100 MiB",
            0.2
        ),
        share!("copied", "1G", "the same, 1 GiB", 0.2),
        share!(
            "lwk",
            "1",
            "of CRIU's gap, base to lightweight kernel, 1 connection, 10 MiB",
            0.05
        ),
        share!("lwk", "100", "the same, 100 connections", 0.05),
        share!("lwk", "100M", "the same, 1 connection, 100 MiB", 0.05),
        share!("lwk", "1G", "the same, 1 connection, 1 GiB", 0.05),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    fs::copy(PROBE, PROGRAM)?;
    run(Command::new("modprobe")
        .arg("-a")
        .args(DIAGNOSES.split(' ')))?;
    make_namespace()?;
    for version in NODES {
        inside.build_image_with_criu(version, version)?;
        // Images of a container's memory lie beside it.
        let size = [
            "--memory",
            "2560M",
            "--network",
            "--rootfs",
            "/",
            "--overlay",
        ];
        let words = [&["run", "--image", version, "--name", version], &size[..]].concat();
        inside.command.run(&words)?;
    }
    inside
        .command
        .start(QUIET, &["--image", "lwk", "--memory", "1536M"])?;
    for _ in 0..inside.count {
        for case in &CASES {
            played(inside, case).map_err(|error| error.when(case.name))?;
        }
    }
    let nodes = ["rm", "--force", NODES[0], NODES[1], QUIET];
    inside.command.run(&nodes).map(drop)
}

fn played(inside: &Inside, case: &Case) -> Result<(), Finding> {
    let mut gaps = vec![(
        "node",
        between_nodes(inside, case, "node", &["--no-pre-copy"])?,
    )];
    if case.memory_mib > SMALL_MIB {
        let gap = between_nodes(inside, case, "copied", &["--pre-copy"])?;
        gaps.push(("copied", gap));
    }
    gaps.push(("lwk", to_lightweight_kernel(inside, case)?));
    for &(way, gap) in &gaps {
        inside.record(&format!("move.gap.{way}-{}", case.name), gap)?;
    }
    if !case.is_beside_criu() {
        return Ok(());
    }
    let criu = by_criu(case)?;
    inside.record(&format!("move.gap.criu-{}", case.name), criu)?;
    for (way, gap) in gaps {
        let share = gap.as_secs_f64() / criu.as_secs_f64();
        inside.record(&format!("move.share.{way}-{}", case.name), share)?;
    }
    Ok(())
}

/// There and back between two Linux nodes by `insula move` with these options; the gap is the longer one.
fn between_nodes(
    inside: &Inside,
    case: &Case,
    way: &str,
    options: &[&str],
) -> Result<Duration, Finding> {
    let bytes = case.bytes();
    let exec = ["exec", "--container", NAME, "-d", NODES[0], "--"];
    inside
        .command
        .run(&[&exec[..], &[PROGRAM, "hold", &bytes, "0"]].concat())?;
    let view: serde_json::Value = serde_json::from_str(&inside.command.run(&["inspect", NAME])?)?;
    let address = view[0]["address"].as_str().unwrap_or_default().to_owned();
    let mut still = Duration::ZERO;
    let gap = case.gap(&address, || {
        for to in [NODES[1], NODES[0]] {
            let told = inside
                .command
                .run(&[&["move", NAME, to], options].concat())?;
            still = still.max(told_ms(&told)?);
        }
        Ok(())
    })?;
    inside.record(&format!("move.still.{way}-{}", case.name), still)?;
    inside.command.run(&["stop", NAME])?;
    inside.command.run(&["rm", NAME])?;
    Ok(gap)
}

/// From the base to the lightweight kernel, and back, which is recorded.
fn to_lightweight_kernel(inside: &Inside, case: &Case) -> Result<Duration, Finding> {
    let server = Server::start(case)?;
    let pid = server.0.id().to_string();
    let move_to = |node: &str| inside.command.run(&["move", &pid, node]);
    let gap = case.gap(NAMESPACE_ADDRESS, || {
        let still = told_ms(&move_to(QUIET)?)?;
        inside.record(&format!("move.still.lwk-{}", case.name), still)
    })?;
    let back = case.gap(NAMESPACE_ADDRESS, || move_to("base").map(drop))?;
    inside.record(&format!("move.gap.base-{}", case.name), back)?;
    Ok(gap)
}

/// Dumped and restored on the base.
fn by_criu(case: &Case) -> Result<Duration, Finding> {
    let mut server = Server::start(case)?;
    let pid = server.0.id().to_string();
    fs::create_dir(IMAGES)?;
    let gap = case.gap(NAMESPACE_ADDRESS, || {
        run(criu().args(["dump", "--tree", &pid]))?;
        // It is restored under its id.
        server.0.wait()?;
        run(criu().args(["restore", "--restore-detached"])).map(drop)
    });
    run(Command::new("kill").args(["-KILL", &pid]))?;
    fs::remove_dir_all(IMAGES)?;
    gap
}

fn criu() -> Command {
    let folder = Path::new(CRIU_PATH).parent().unwrap_or(Path::new("/"));
    let mut command = in_namespace();
    command.arg(folder.join("ld-linux-x86-64.so.2"));
    command
        .arg("--library-path")
        .args([folder, Path::new(CRIU_PATH)]);
    command.args(["--tcp-established", "--images-dir", IMAGES]);
    command
}

impl Case {
    fn bytes(&self) -> String {
        (self.memory_mib << 20).to_string()
    }

    /// The longest time that an answer took while something was done with the server.
    fn gap(
        &self,
        address: &str,
        act: impl FnOnce() -> Result<(), Finding>,
    ) -> Result<Duration, Finding> {
        let clients = Clients::start(address, self.connections)?;
        act()?;
        clients.go_round(self.connections)?;
        Ok(clients.longest()?)
    }
}

/// The server in the network namespace, until this is dropped. It is moved under its process id.
struct Server(Child);

impl Server {
    fn start(case: &Case) -> Result<Self, Finding> {
        let mut command = Command::new("setsid");
        command.arg("nsenter").args(in_namespace().get_args());
        command.args([PROGRAM, "hold", &case.bytes(), "0"]);
        for set in [Command::stdin, Command::stdout, Command::stderr] {
            set(&mut command, Stdio::null());
        }
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The time that `insula move` tells: `for N ms`.
fn told_ms(text: &str) -> Result<Duration, Finding> {
    let after = text.split(" for ").nth(1).unwrap_or_default();
    let ms = after.split(' ').next().unwrap_or_default().parse();
    let ms: f64 = ms.map_err(|_| Finding::new(format!("no time in: {text}")))?;
    Ok(Duration::from_secs_f64(ms / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_told_is_read() {
        let told = "container 'held' runs on '6.12': 90 KiB of images, stood still for 80 ms, 2 packets held\n";
        assert_eq!(told_ms(told).unwrap(), Duration::from_millis(80));
        let told = "process 7 runs on 'quiet': 1 threads, stopped for 1.5 ms\n";
        assert_eq!(told_ms(told).unwrap(), Duration::from_micros(1500));
        assert!(told_ms("nothing").is_err());
    }
}

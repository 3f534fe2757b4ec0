//! Influence of neighbours on a node, compared with containers on one kernel on the same cores.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_node::{self as node, NodeLog};
use testbed::base::{Finding, Shape};
use testbed::host::root::Root;
use testbed::node::WORK;

use super::{Benchmark, Row, Unit};
use crate::inside::{Container, Inside, lines, wait_until_ready};

const KERNEL: &str = "6.12";
/// Measurements, by the script's names.
const KINDS: [&str; 2] = ["compute", "copy"];
/// Number of neighbours, each on a core of its own, after the measured one's core.
const NEIGHBOURS: usize = 2;
const CORE: usize = 1;
const MEMORY: &str = "256M";
const MEMORY_BYTES: u64 = 256 << 20;
/// A piece of work takes about a second on a quiet machine.
const LIMIT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

const IN_NODE: &str = "insula run --image … --cpu-list 1 --memory 256M, then the work in the node";
const IN_CONTAINER: &str = "unshare …, with cpuset.cpus=1 and memory.max=256M";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "neighbour",
    title: "What a node feels of its neighbours",
    how: "One node of one core works: SHA-256 over 16 MiB, twice (*compute*), and 512 MiB read \
          from a file in memory (*copy*), each timed by itself, by busybox. Then one, then two \
          others on cores of their own disturb it: they make processes, allocate memory, fill, \
          read and free it. The rows show by how much both then take longer than alone, of each \
          round by itself. The peers are the same programs in containers on the base's kernel, on \
          the same cores: a control group with `cpuset.cpus` and `memory.max`, namespaces of \
          their own. Contention of the emulator's threads on the host is in all figures: if the \
          host has two cores, one for the working node and one for its first neighbour, the \
          second neighbour slows everything down. Only node and container can be compared.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        alone(
            "neighbour.node.compute.alone",
            "Compute in a node, alone",
            IN_NODE,
        )
        .beside("neighbour.container.compute.alone"),
        alone(
            "neighbour.container.compute.alone",
            "Compute in a container, alone",
            IN_CONTAINER,
        ),
        slower(
            "neighbour.node.compute.one",
            "Compute in a node, one neighbour",
        )
        .beside("neighbour.container.compute.one")
        .drawn(),
        slower(
            "neighbour.container.compute.one",
            "Compute in a container, one neighbour",
        )
        .drawn(),
        slower(
            "neighbour.node.compute.two",
            "Compute in a node, two neighbours",
        )
        .beside("neighbour.container.compute.two")
        .drawn(),
        slower(
            "neighbour.container.compute.two",
            "Compute in a container, two neighbours",
        )
        .drawn(),
        alone(
            "neighbour.node.copy.alone",
            "Copy in a node, alone",
            IN_NODE,
        )
        .beside("neighbour.container.copy.alone"),
        alone(
            "neighbour.container.copy.alone",
            "Copy in a container, alone",
            IN_CONTAINER,
        ),
        slower("neighbour.node.copy.one", "Copy in a node, one neighbour")
            .beside("neighbour.container.copy.one")
            .drawn(),
        slower(
            "neighbour.container.copy.one",
            "Copy in a container, one neighbour",
        )
        .drawn(),
        slower("neighbour.node.copy.two", "Copy in a node, two neighbours")
            .beside("neighbour.container.copy.two")
            .drawn(),
        slower(
            "neighbour.container.copy.two",
            "Copy in a container, two neighbours",
        )
        .drawn(),
    ],
};

const fn alone(id: &'static str, what: &'static str, command: &'static str) -> Row {
    Row::time(id, what, command)
}

/// Ratio of its time to that without neighbours.
const fn slower(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Share)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.add_image(KERNEL, KERNEL, "compressed")?;
    for _ in 0..inside.count {
        measure(inside, "node", |number, task| {
            Ok(Worker::Node(Box::new(Node::start(inside, number, task)?)))
        })?;
        measure(inside, "container", |number, task| {
            let script = format!("{WORK}\n{task} /mnt");
            let name = format!("worker-{number}");
            let started = Container::start(&name, CORE + number, MEMORY_BYTES, &script)?;
            Ok(Worker::Container(started))
        })?;
    }
    Ok(())
}

/// Measures a worker, alone and beside others; `start` starts the worker of that number with that
/// task.
fn measure<'a>(
    inside: &Inside,
    place: &str,
    start: impl Fn(usize, &str) -> Result<Worker<'a>, Finding>,
) -> Result<(), Finding> {
    let working = start(0, "work")?;
    let alone = working.next_times()?;
    for (kind, time) in KINDS.iter().zip(alone) {
        inside.record(&format!("neighbour.{place}.{kind}.alone"), time)?;
    }
    let mut neighbours = Vec::new();
    for (number, word) in (1..=NEIGHBOURS).zip(["one", "two"]) {
        neighbours.push(start(number, "noise")?);
        let times = working.next_times()?;
        for (kind, (time, alone)) in KINDS.iter().zip(times.iter().zip(alone)) {
            let share = time.as_secs_f64() / alone.as_secs_f64();
            inside.record(&format!("neighbour.{place}.{kind}.{word}"), share)?;
        }
    }
    Ok(())
}

/// A worker on a core of its own, until this is dropped.
enum Worker<'a> {
    Node(Box<Node<'a>>),
    Container(Container),
}

impl Worker<'_> {
    fn lines(&self) -> Result<Vec<String>, Finding> {
        match self {
            Self::Node(node) => Ok(lines(&node.log, "work ")),
            Self::Container(container) => Ok(container.lines()?),
        }
    }

    /// Times of the next pieces of each kind that start after this call.
    fn next_times(&self) -> Result<[Duration; KINDS.len()], Finding> {
        let before = self.times()?.map(|times| times.len());
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            let times = self.times()?;
            // The next piece to end has already started.
            let mut next = times
                .iter()
                .zip(before)
                .map(|(times, had)| times.get(had + 1));
            if let (Some(Some(compute)), Some(Some(copy))) = (next.next(), next.next()) {
                return Ok([*compute, *copy]);
            }
            sleep(POLL_INTERVAL);
        }
        let lines = self.lines()?;
        Err(Finding::new(format!("no work is done in time: {lines:?}")))
    }

    /// Times of all pieces so far, of each kind.
    fn times(&self) -> Result<[Vec<Duration>; KINDS.len()], Finding> {
        let lines = self.lines()?;
        Ok(KINDS.map(|kind| {
            let prefix = format!("work {kind} hundredths=");
            let values = lines.iter().filter_map(|line| line.strip_prefix(&prefix));
            let hundredths = values.filter_map(|value| value.trim().parse().ok());
            hundredths
                .map(|one: u64| Duration::from_millis(10 * one))
                .collect()
        }))
    }
}

/// A node of one core, which is removed when this is dropped.
struct Node<'a> {
    inside: &'a Inside,
    name: String,
    log: NodeLog,
}

impl<'a> Node<'a> {
    fn start(inside: &'a Inside, number: usize, task: &str) -> Result<Self, Finding> {
        let name = format!("worker-{number}");
        let (core, append) = ((CORE + number).to_string(), format!("do={task}"));
        let size = ["--cpu-list", &core, "--memory", MEMORY, "--append", &append];
        let words = [&["--image", KERNEL], &size[..]].concat();
        let started = inside.command.start(&name, &words)?;
        wait_until_ready(&inside.driver, &started.name)?;
        let log = NodeLog::open(&node::find(&inside.driver, &started.name)?)?;
        Ok(Self { inside, name, log })
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        // If this fails, the next start reports it, since the name is in use.
        let _ = self.inside.command.run(&["rm", "--force", &self.name]);
    }
}

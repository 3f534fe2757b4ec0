//! A disk in a node, compared with the same disk in the base.

use std::process::Command;
use std::time::{Duration, Instant};

use insula_driver::name::Name;
use insula_node::{self as node, NodeLog};
use testbed::base::{Finding, Shape};
use testbed::host::machine::SpareDevices;
use testbed::host::root::Root;
use testbed::node::SPEED;

use super::{Benchmark, Row, Unit};
use crate::inside::{Inside, SPARE_DISK, lines, spare_disk};

const KERNEL: &str = "6.12";
const NODE: &str = "store";
/// Measurements of the script, in its order.
const KINDS: [&str; 4] = ["write", "read", "write_4k", "read_4k"];
/// A round takes some seconds on a quiet machine.
const LIMIT: Duration = Duration::from_secs(180);

const IN_NODE: &str = "insula run --image … --device 0000:01:00.0, then dd in the node";
const IN_BASE: &str = "dd iflag=direct (oflag=direct) in the base";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "device",
    title: "A disk in a node, beside the same in the base",
    how: "An NVMe controller behind a port of its own, used by busybox's `dd` past all caches, \
          one request after the other: in blocks of 1 MiB for the throughput, of 4 KiB for the \
          time of each. The same program does the same in the base and then, with the controller \
          given to it, in a node of one core. Each round measures both. The disk is a file in the \
          memory of the computer that emulates the machine: the path to the disk is compared, not \
          the disk.",
    machine: Shape {
        spare_devices: SpareDevices::Plain,
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 2,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time("device.node.read", "Reading, in the node", IN_NODE)
            .unit(Unit::MegabytesPerSecond)
            .beside("device.base.read")
            .drawn(),
        Row::time("device.base.read", "Reading, in the base", IN_BASE)
            .unit(Unit::MegabytesPerSecond)
            .drawn(),
        Row::time("device.node.write", "Writing, in the node", IN_NODE)
            .unit(Unit::MegabytesPerSecond)
            .beside("device.base.write")
            .drawn(),
        Row::time("device.base.write", "Writing, in the base", IN_BASE)
            .unit(Unit::MegabytesPerSecond)
            .drawn(),
        Row::time("device.node.read_4k", "Reading 4 KiB, in the node", IN_NODE)
            .beside("device.base.read_4k"),
        Row::time("device.base.read_4k", "Reading 4 KiB, in the base", IN_BASE),
        Row::time(
            "device.node.write_4k",
            "Writing 4 KiB, in the node",
            IN_NODE,
        )
        .beside("device.base.write_4k"),
        Row::time(
            "device.base.write_4k",
            "Writing 4 KiB, in the base",
            IN_BASE,
        ),
    ],
};

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.add_image(KERNEL, KERNEL, "compressed")?;
    for _ in 0..inside.count {
        for line in in_base()? {
            record(inside, "base", &line)?;
        }
        let words = ["--image", KERNEL, "--cpus", "1", "--memory", "256M"];
        let device = ["--device", SPARE_DISK, "--append", "do=disk_speed"];
        let started = inside
            .command
            .start(NODE, &[&words[..], &device].concat())?;
        for line in in_node(inside, &started.name)? {
            record(inside, "node", &line)?;
        }
        inside.command.run(&["rm", "--force", NODE])?;
    }
    Ok(())
}

/// Output of the script in the base.
fn in_base() -> Result<Vec<String>, Finding> {
    let script = format!("{SPEED}\nspeed {}", spare_disk()?);
    let output = Command::new("busybox")
        .args(["sh", "-c", &script])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().map(str::to_owned).collect())
}

/// First of each of the script's lines in the node's log.
fn in_node(inside: &Inside, name: &Name) -> Result<Vec<String>, Finding> {
    let deadline = Instant::now() + LIMIT;
    let log = NodeLog::open(&node::find(&inside.driver, name)?)?;
    while Instant::now() < deadline {
        let mut lines = lines(&log, "speed ");
        if lines.len() >= KINDS.len() {
            lines.truncate(KINDS.len());
            return Ok(lines);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(Finding::new(format!(
        "{name} has not reported its disk in time"
    )))
}

/// Records the figures of a line: MB/s of large blocks, milliseconds for each small one.
fn record(inside: &Inside, place: &str, line: &str) -> Result<(), Finding> {
    let bad = || Finding::new(format!("no measurement: {line}"));
    let words: Vec<_> = line.split_whitespace().collect();
    let kind = words
        .get(1)
        .filter(|kind| KINDS.contains(kind))
        .ok_or_else(bad)?;
    let number = |name: &str| {
        let mut values = words.iter().filter_map(|word| word.strip_prefix(name));
        values
            .next()
            .and_then(|value| value.parse::<f64>().ok())
            .ok_or_else(bad)
    };
    let (blocks, size) = (number("blocks=")?, number("size=")?);
    let seconds = number("hundredths=")? / 100.0;
    if seconds <= 0.0 {
        return Err(bad());
    }
    let value = match kind.ends_with("_4k") {
        true => seconds * 1e3 / blocks,
        false => blocks * size / 1e6 / seconds,
    };
    inside.record(&format!("device.{place}.{kind}"), value)
}

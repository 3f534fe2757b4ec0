//! Time from a node's end to its detection, and to the restarted node.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use insula_driver::name::Name;
use insula_node::{self as node, Handle};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use testbed::base::{Finding, Shape, hang};
use testbed::host::root::Root;

use super::{Benchmark, Row};
use crate::inside::{Inside, wait_for_line, wait_until_ready};

const KERNEL: &str = "6.12";
const NODE: &str = "node";
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];
const POLICY: [&str; 4] = ["--restart", "always", "--on-hang", "restart"];

/// Interval of polling the node's state: the error of the time to running.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// A hang is detected after five seconds.
const LIMIT: Duration = Duration::from_secs(120);

const RESTART: &str =
    "insula run --image … --cpus 1 --memory 256M --restart always --on-hang restart";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "ending",
    title: "A node's end, and its next beginning",
    how: "A node of 6.12 with one core and 256 MiB, started from a resident image with `--restart \
          always --on-hang restart`, ends by itself. The time starts with the kernel's line that \
          announces the end (`Power down`, `Restarting system`, `Kernel panic`, `System halted`), \
          which is polled every 0.5 ms in the node's memory; for a hang with the change to the \
          kernel's code that makes it spin with interrupts off. *Seen* is when a process that \
          waits on the node's descriptor is woken, *running* when the first core has entered the \
          kernel again, *ready* the line of the node's init. All but a reboot include the 100 ms \
          of delay before a first restart. Crashes and halts are polled once a second; a hang is \
          reported after five failed probes.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
    series: &[],
    rows: &[
        Row::time("ending.poweroff.seen", "power-off: seen", RESTART).drawn(),
        Row::time("ending.poweroff.running", "power-off: running", RESTART),
        Row::time("ending.poweroff.ready", "power-off: ready", RESTART),
        Row::time("ending.reboot.seen", "reboot: seen", RESTART).drawn(),
        Row::time("ending.reboot.running", "reboot: running", RESTART),
        Row::time("ending.reboot.ready", "reboot: ready", RESTART),
        Row::time("ending.panic.seen", "panic: seen", RESTART).drawn(),
        Row::time("ending.panic.running", "panic: running", RESTART),
        Row::time("ending.panic.ready", "panic: ready", RESTART),
        Row::time("ending.halt.seen", "halt: seen", RESTART).drawn(),
        Row::time("ending.halt.running", "halt: running", RESTART),
        Row::time("ending.halt.ready", "halt: ready", RESTART),
        Row::time("ending.hang.seen", "hang: seen", RESTART).drawn(),
        Row::time("ending.hang.running", "hang: running", RESTART),
        Row::time("ending.hang.ready", "hang: ready", RESTART),
    ],
};

/// Task of the node, and its kernel's line that announces the end.
const ENDINGS: [(&str, &str); 4] = [
    ("poweroff", "reboot: Power down"),
    ("reboot", "reboot: Restarting system"),
    ("panic", "Kernel panic - not syncing"),
    ("halt", "reboot: System halted"),
];

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.add_image(KERNEL, KERNEL, "compressed")?;
    let kernel = std::fs::read(inside.kernel(KERNEL)?)?;
    for _ in 0..inside.count {
        for (task, line) in ENDINGS {
            let name = start(inside, task)?;
            let ended = wait_for_line(&inside.driver, &name, line, POLL_INTERVAL)?;
            follow(inside, task, &name, ended)?;
        }
        let name = start(inside, "idle")?;
        wait_until_ready(&inside.driver, &name)?;
        hang(NODE, &kernel)?;
        follow(inside, "hang", &name, Instant::now())?;
    }
    Ok(())
}

fn start(inside: &Inside, task: &str) -> Result<Name, Finding> {
    let append = format!("do={task}");
    let own = ["--image", KERNEL, "--append", &append];
    let words = [&own, &SIZE[..], &POLICY[..]].concat();
    Ok(inside.command.start(NODE, &words)?.name)
}

/// Measures the times after the end at `ended`, and removes the node.
fn follow(inside: &Inside, task: &str, name: &Name, ended: Instant) -> Result<(), Finding> {
    let mut handle = node::find(&inside.driver, name)?;
    let starts = handle.info.starts;
    if starts == 1 {
        wait_until_stopped(&handle)?;
        inside.record(&format!("ending.{task}.seen"), ended.elapsed())?;
    }
    wait_until_restarted(&mut handle)?;
    inside.record(&format!("ending.{task}.running"), ended.elapsed())?;
    let ready = wait_until_ready(&inside.driver, name)?;
    inside.record(&format!("ending.{task}.ready"), ready - ended)?;
    inside.command.run(&["rm", "--force", NODE]).map(drop)
}

fn wait_until_stopped(handle: &Handle) -> Result<(), Finding> {
    let mut descriptors = [PollFd::new(handle.node.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(LIMIT).unwrap_or(PollTimeout::MAX);
    let woken = poll(&mut descriptors, limit)?;
    Finding::unless(woken > 0, || "the node does not end".to_owned())
}

fn wait_until_restarted(handle: &mut Handle) -> Result<(), Finding> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        handle.refresh()?;
        if handle.is_running() && handle.info.starts > 1 {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Err(Finding::new("the node is not restarted"))
}

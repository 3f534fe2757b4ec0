//! From a node's end to its being seen, and to the node's running again.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use insula::name::Name;
use insula::node::{self, Handle};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use testbed::root::Root;
use testbed::scenario::{Finding, Shape, hang};

use super::{Benchmark, Row};
use crate::inside::{Inside, wait_for_line, wait_until_ready};

const KERNEL: &str = "6.12";
const NODE: &str = "node";
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "256M"];
const POLICY: [&str; 4] = ["--restart", "always", "--on-hang", "restart"];

/// How often the node's state is looked at: the error of the time to running.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// A hang is seen after five seconds.
const LIMIT: Duration = Duration::from_secs(120);

const RESTART: &str =
    "insula run --image … --cpus 1 --memory 256M --restart always --on-hang restart";

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "ending",
    title: "A node's end, and its next beginning",
    how: "A node of 6.12 with one core and 256 MiB, started from a resident image with \
          `--restart always --on-hang restart`, ends by itself. The time begins with the kernel's \
          line that tells of the end (`Power down`, `Restarting system`, `Kernel panic`, \
          `System halted`), which is polled every 0.5 ms in the node's memory; for a hang with \
          the change to the kernel's code that makes it spin with interrupts off. *Seen* is when \
          a process that waits on the node's descriptor is woken, *running* when the first core \
          has entered the kernel again, *ready* the line of the node's init. All but a reboot wait \
          the 100 ms of a first restart in between. A crash and a halt are looked for once a \
          second, a hang is told after five looks in vain.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: None,
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

/// What the node does, and its kernel's line that tells of it.
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

/// Measures what comes after the end at `ended`, and removes the node.
fn follow(inside: &Inside, task: &str, name: &Name, ended: Instant) -> Result<(), Finding> {
    let mut handle = node::find(&inside.driver, name)?;
    let starts = handle.info.starts;
    if starts == 1 {
        wait_until_stopped(&handle)?;
        inside.record(&format!("ending.{task}.seen"), ended.elapsed())?;
    }
    wait_until_again(&mut handle)?;
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

fn wait_until_again(handle: &mut Handle) -> Result<(), Finding> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        handle.refresh()?;
        if handle.is_running() && handle.info.starts > 1 {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Err(Finding::new("the node is not started again"))
}

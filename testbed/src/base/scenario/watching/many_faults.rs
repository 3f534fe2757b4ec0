//! In a long run: hundreds of faults, one after another in a random order, and long work of the node
//! that is none.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use serde_json::Value;

use super::faults::{Fault, HANGS_ALSO, TOGETHER, expected, make};
use super::watch::in_node;
use super::watcher_process::WatcherProcess;
use crate::base::support::insula_command::text;
use crate::base::{Context, Finding};

/// How often each fault is made in a node: with two nodes some 200 together.
const ROUNDS: u64 = 5;
/// For how many minutes a node works.
const WORK_MIN: u64 = 10;
/// What the node does for a while, over and over: processes, files, memory, and what changes its own
/// kernel: modules, kprobes, ftrace.
const WORK: &str = "
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
for round in 1 2 3; do
    insmod /insula_fault.ko fault=hung && rmmod insula_fault
    echo 'p do_sys_openat2' > kprobe_events; echo 1 > events/kprobes/enable
    echo 'vfs_*' > set_ftrace_filter; echo function > current_tracer
    for file in 1 2 3 4 5 6 7 8; do
        (cat /bin/busybox /bin/busybox > /tmp/$file; cat /tmp/$file > /dev/null; rm /tmp/$file) &
    done
    wait
    echo nop > current_tracer; echo > set_ftrace_filter
    echo 0 > events/kprobes/enable; echo > kprobe_events
done
cd /; umount /sys/kernel/tracing";

/// What became of the faults of a kind.
#[derive(Default)]
struct Tally {
    /// Times from before the driver is loaded until the fault is found, in seconds.
    times: Vec<f64>,
    /// What was not as it must be: not found, not told as ended, or something else found.
    failures: Vec<String>,
}

/// Faults are made one after another: each is found, and nothing else is. What goes wrong with one is
/// counted, and the others are made all the same.
pub(super) fn are_found(
    context: &Context,
    version: &str,
    watcher: &WatcherProcess,
) -> Result<(), Finding> {
    let seed = Rng::new().u64(..);
    println!("seed of the faults' order: {seed}");
    let mut rng = Rng::with_seed(seed);
    let mut tallies = BTreeMap::<&str, Tally>::new();
    for _ in 0..ROUNDS {
        let mut faults = TOGETHER;
        rng.shuffle(&mut faults);
        for fault in faults {
            let tally = tallies.entry(fault.1.kind).or_default();
            match is_found(watcher, fault) {
                Ok(took) => tally.times.push(took),
                Err(finding) => {
                    println!("{}: {finding}", fault.0);
                    tally.failures.push(format!("{}: {finding}", fault.0));
                }
            }
        }
    }
    let mut failures = Vec::new();
    for (kind, mut tally) in tallies {
        tally.write(context, &format!("{version}.{kind}"))?;
        failures.append(&mut tally.failures);
    }
    Finding::unless(failures.is_empty(), || failures.join("\n"))
}

impl Tally {
    /// Writes it as figures, whose names begin so.
    fn write(&mut self, context: &Context, name: &str) -> Result<(), Finding> {
        let (found, failed) = (self.times.len(), self.failures.len());
        context.figure(&format!("{name}.count"), (found + failed) as f64, "1")?;
        context.figure(&format!("{name}.failed"), failed as f64, "1")?;
        self.times.sort_by(f64::total_cmp);
        for (percent, label) in [(50, "median"), (99, "p99")] {
            // The nearest rank. If none was found there is no time.
            let rank = (found * percent).div_ceil(100);
            if let Some(time) = rank.checked_sub(1).and_then(|at| self.times.get(at)) {
                context.figure(&format!("{name}.found-{label}"), *time, "s")?;
            }
        }
        Ok(())
    }
}

/// Makes a fault and undoes it, also if it is not found. Returns the seconds until it was found.
fn is_found(watcher: &WatcherProcess, fault: Fault) -> Result<f64, Finding> {
    let before = watcher.all().len();
    let process = in_node("sleep 10000 > /dev/null 2>&1 & echo $!")?;
    let process = process.trim();
    let began = SystemTime::now();
    make(&[fault], process)?;
    let expected = expected(&[fault]);
    let found = watcher.wait_for_each(before, "found", &expected);
    in_node(&format!("rmmod insula_fault; kill {process}"))?;
    let found = found?;
    let at = humantime::parse_rfc3339(&text(&found[0]["time"]))?;
    watcher.wait_for_each(before, "ended", &expected)?;
    nothing_else(&watcher.all()[before..], |event| fault.1.is_told_by(event))?;
    Ok(at.duration_since(began)?.as_secs_f64())
}

/// Nothing is found while the node works.
pub(super) fn work_is_none(
    context: &Context,
    version: &str,
    watcher: &WatcherProcess,
) -> Result<(), Finding> {
    let limit = Duration::from_secs(60 * WORK_MIN);
    let (before, began) = (watcher.all().len(), Instant::now());
    let mut rounds = 0;
    while began.elapsed() < limit {
        in_node(WORK)?;
        rounds += 1;
    }
    context.figure(&format!("{version}.work.rounds"), f64::from(rounds), "1")?;
    let worked = began.elapsed().as_secs_f64();
    context.figure(&format!("{version}.work.time"), worked, "s")?;
    let events = watcher.all();
    let found = events[before..].iter();
    let found = found.filter(|event| event["event"] == "found");
    // Of a busy emulated machine this can be true: the limits are short.
    println!("findings of waiting and busy cores: {}", found.count());
    nothing_else(&events[before..], |_| false)
}

/// Fails if there is an event of something else, but for what the driver's threads are found as, and
/// busy cores.
fn nothing_else(events: &[Value], is_it: impl Fn(&Value) -> bool) -> Result<(), Finding> {
    let is_other =
        |event: &&Value| !is_it(event) && !HANGS_ALSO.contains(&text(&event["kind"]).as_str());
    let others: Vec<_> = events.iter().filter(is_other).collect();
    Finding::unless(others.is_empty(), || format!("also found: {others:?}"))
}

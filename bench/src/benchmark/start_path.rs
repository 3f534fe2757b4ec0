//! Instructions of a node's start.

use std::thread;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::lwk_start::{LINUX, NODE, reserve, run_program, start_linux};
use super::{Benchmark, Counted, Row, Unit};
use crate::inside::{Inside, pin};
use crate::marks::{Count, Kind};

/// The core whose counter is asked; the base never gives it away.
const COUNTED_CORE: usize = 0;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "start-path",
    title: "Instructions of a node's start",
    how: "Instructions that all cores execute for `insula run --image lwk -- /bin/true`, from Enter \
          to its end, and for the start of a Linux node of 6.12, resident, of the same size, until \
          its init is ready, both from the pool; counted by a plugin of the emulator. What the \
          emulator translates meanwhile is code executed for the first time, or at other addresses: \
          it costs nothing on hardware, and most of the time in emulation (see `lwk-start`). Idle \
          cores execute nothing; polls are included.",
    machine: Shape::USUAL,
    root: Root::Test,
    rounds: 3,
    inside,
    outside: None,
    counted: Some(Counted {
        lines: false,
        path_core: None,
        samples,
    }),
    series: &[],
    rows: &[
        count("start-path.linux", "a Linux node to its init").drawn(),
        count("start-path.lwk", "a program on the lightweight kernel")
            .beside("start-path.linux")
            .drawn(),
        count("start-path.linux-translated", "translated, Linux node"),
        count(
            "start-path.lwk-translated",
            "translated, lightweight kernel",
        )
        .beside("start-path.linux-translated"),
        Row::time("start-path.share", "executed, of a Linux node's start", "")
            .unit(Unit::Share)
            .goal(0.02),
    ],
};

const fn count(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Count)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    inside.add_image(LINUX, "6.12", "compressed")?;
    // The first start is not counted: the base does all for the first time.
    run_program(inside)?;
    for _ in 0..inside.count {
        // Cleared memory, so that no start waits until that of the node before has been cleared.
        reserve(inside)?;
        counted(Kind::NodeLwk, || run_program(inside))?;
        inside.command.run(&["machine", "release"])?;
        reserve(inside)?;
        counted(Kind::NodeLinux, || start_linux(inside).map(drop))?;
        inside.command.run(&["rm", "--force", NODE])?;
        inside.command.run(&["machine", "release"])?;
    }
    Ok(())
}

/// Marks the work from a fixed core, as a window belongs to a core; the work itself may run on any.
fn counted(
    kind: Kind,
    work: impl Fn() -> Result<(), Finding> + Send + Sync,
) -> Result<(), Finding> {
    let this_thread = Pid::from_raw(0);
    let all: CpuSet = sched_getaffinity(this_thread)?;
    pin(0, COUNTED_CORE)?;
    kind.begin();
    let done = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            sched_setaffinity(this_thread, &all)?;
            work()
        });
        worker.join()
    });
    kind.end();
    sched_setaffinity(this_thread, &all)?;
    done.unwrap_or_else(|_| Err(Finding::new("the work panicked")))
}

fn samples(counts: &[Count]) -> Vec<(&'static str, f64)> {
    let of_one = |count: &Count| {
        let ids = match count.kind {
            Kind::NodeLwk => ["start-path.lwk", "start-path.lwk-translated"],
            Kind::NodeLinux => ["start-path.linux", "start-path.linux-translated"],
            _ => return Vec::new(),
        };
        let values = [count.machine.executed, count.machine.translated];
        ids.into_iter()
            .zip(values.map(|value| value as f64))
            .collect()
    };
    counts
        .iter()
        .flat_map(of_one)
        .chain(shares(counts))
        .collect()
}

/// The ratio of each round.
fn shares(counts: &[Count]) -> impl Iterator<Item = (&'static str, f64)> {
    let executed = |kind| {
        let of_kind = counts.iter().filter(move |count| count.kind == kind);
        of_kind.map(|count| count.machine.executed as f64)
    };
    let rounds = executed(Kind::NodeLwk).zip(executed(Kind::NodeLinux));
    rounds.map(|(lwk, linux)| ("start-path.share", lwk / linux))
}

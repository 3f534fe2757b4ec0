//! Noise: what a computing program shares its core with.

use std::path::Path;
use std::thread;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use super::{Benchmark, Counted, Row, Unit};
use crate::inside::{Inside, LwkNode, PROBE, Place};
use crate::marks::{Count, Kind};

/// Core of each program, by the base's numbers.
const PLAIN: usize = 1;
const ISOLATED: usize = 2;
const LWK: usize = 3;

pub(super) const BENCHMARK: Benchmark = Benchmark {
    name: "noise",
    title: "Noise: what a computing program shares its core with",
    how: "A program computes without a system call, some 10^9 instructions on an ordinary core of \
          the base, and ten times as many on an isolated one (`isolcpus=nohz,domain` `nohz_full=` \
          `rcu_nocbs=`) and, at the same time, on a node of the lightweight kernel. A plugin of \
          the emulator counts how often the core leaves the program for the kernel and how many \
          instructions it executes there, per 10^9 of the program's. On the last two hardly \
          anything happens: where nothing does, there is no ratio. Only hardware can show how \
          long that takes, and the rate of timer interrupts depends on the emulator's speed: \
          compare the rows with each other, not with hardware.",
    machine: Shape {
        append: "isolcpus=nohz,domain,2 nohz_full=2 rcu_nocbs=2",
        ..Shape::USUAL
    },
    root: Root::Test,
    rounds: 1,
    inside,
    outside: None,
    counted: Some(Counted {
        lines: false,
        path_core: None,
        samples,
    }),
    series: &[],
    rows: &[
        count("noise.plain-entries", "kernel entries, a usual core").drawn(),
        count("noise.isolated-entries", "kernel entries, an isolated core")
            .beside("noise.plain-entries")
            .drawn(),
        count(
            "noise.quiet-entries",
            "kernel entries, the lightweight kernel",
        )
        .beside("noise.isolated-entries")
        .drawn(),
        count(
            "noise.plain-instructions",
            "kernel instructions, a usual core",
        ),
        count(
            "noise.isolated-instructions",
            "kernel instructions, an isolated core",
        )
        .beside("noise.plain-instructions"),
        count(
            "noise.quiet-instructions",
            "kernel instructions, the lightweight kernel",
        )
        .beside("noise.isolated-instructions"),
        Row::time(
            "noise.share",
            "kernel instructions, lightweight kernel of isolated core, all of a boot",
            "",
        )
        .unit(Unit::Share)
        .goal(0.1),
    ],
};

const fn count(id: &'static str, what: &'static str) -> Row {
    Row::time(id, what, "").unit(Unit::Count)
}

fn inside(inside: &Inside) -> Result<(), Finding> {
    let lwk_node = LwkNode::start(inside, LWK)?;
    for _ in 0..inside.count {
        let spin = |place, kind| lwk_node.marked(place, kind, Path::new(PROBE));
        spin(Place::Base(PLAIN), Kind::SpinPlain)?;
        thread::scope(|scope| {
            let isolated = scope.spawn(move || spin(Place::Base(ISOLATED), Kind::SpinIsolated));
            let lwk = spin(Place::Lwk, Kind::SpinLwk);
            let panicked = |_| Finding::new("a thread of the benchmark panicked");
            isolated.join().map_err(panicked)?.and(lwk)
        })?;
    }
    lwk_node.remove()
}

fn samples(counts: &[Count]) -> Vec<(&'static str, f64)> {
    let mut samples = Vec::new();
    for count in counts {
        let (entries, instructions) = match count.kind {
            Kind::SpinPlain => ("noise.plain-entries", "noise.plain-instructions"),
            Kind::SpinIsolated => ("noise.isolated-entries", "noise.isolated-instructions"),
            Kind::SpinLwk => ("noise.quiet-entries", "noise.quiet-instructions"),
            _ => continue,
        };
        samples.push((entries, per_milliard(count, count.kernel_entries)));
        samples.push((instructions, per_milliard(count, count.kernel_instructions)));
    }
    let all = |kind| {
        let of_kind = counts.iter().filter(move |count| count.kind == kind);
        of_kind
            .map(|count| per_milliard(count, count.kernel_instructions))
            .sum::<f64>()
    };
    // Without any noise there is no ratio.
    let isolated = all(Kind::SpinIsolated);
    if isolated > 0.0 {
        samples.push(("noise.share", all(Kind::SpinLwk) / isolated));
    }
    samples
}

fn per_milliard(count: &Count, what: u64) -> f64 {
    what as f64 * 1e9 / count.user_instructions.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::Machine;

    #[test]
    fn counts_are_per_milliard_of_the_programs_instructions() {
        let count = |kind, kernel_instructions| Count {
            kind,
            user_instructions: 2_000_000_000,
            kernel_instructions,
            our_instructions: 0,
            kernel_entries: 4,
            machine: Machine::default(),
            code_lines: 0,
            data_lines: 0,
        };
        let samples = samples(&[count(Kind::SpinIsolated, 1000), count(Kind::SpinLwk, 50)]);
        let expected = [
            ("noise.isolated-entries", 2.0),
            ("noise.isolated-instructions", 500.0),
            ("noise.quiet-entries", 2.0),
            ("noise.quiet-instructions", 25.0),
            ("noise.share", 0.05),
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn of_no_noise_there_is_no_share() {
        let count = |kind| Count {
            kind,
            user_instructions: 1_000_000_000,
            kernel_instructions: 0,
            our_instructions: 0,
            kernel_entries: 0,
            machine: Machine::default(),
            code_lines: 0,
            data_lines: 0,
        };
        let samples = samples(&[count(Kind::SpinIsolated), count(Kind::SpinLwk)]);
        assert!(
            samples.iter().all(|&(id, _)| id != "noise.share"),
            "{samples:?}"
        );
    }
}

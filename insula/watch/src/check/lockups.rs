//! Processors that do not get on.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::target::{Kernel, Since};
use crate::task::Task;
use insula_rules::Limits;
use kimage::running::{Processor, RunningError};
use std::collections::HashMap;
use std::time::Duration;

/// What counts as time in the kernel (`enum cpu_usage_stat`).
const KERNEL_TIMES: [&str; 3] = ["CPUTIME_SYSTEM", "CPUTIME_SOFTIRQ", "CPUTIME_IRQ"];
/// What does not.
const OTHER_TIMES: [&str; 4] = [
    "CPUTIME_USER",
    "CPUTIME_NICE",
    "CPUTIME_IDLE",
    "CPUTIME_IOWAIT",
];
/// Part of the counted time that is in the kernel, and of the time the least that is counted: where a
/// processor is not executed for a while, as that of a virtual machine, ticks are lost.
const IN_KERNEL_MIN: f64 = 0.9;
const COUNTED_MIN: f64 = 0.25;

/// Looks at each processor that is not idle: does it take timer interrupts, does it switch between
/// tasks if another one waits, or else, does it leave the kernel? Uses the counters that the kernel keeps anyway, not its
/// watchdogs, which can be disabled and hang themselves.
#[derive(Debug, Default)]
pub(super) struct Lockups {
    processors: HashMap<u32, Progress>,
}

/// What a processor has counted, and since when.
#[derive(Debug)]
struct Progress {
    interrupts: Since<u64>,
    switches: Since<u64>,
    /// Time in the kernel, and elsewhere, in nanoseconds, when it last switched.
    kernel_ns: u64,
    other_ns: u64,
}

/// What it counts now.
#[derive(Debug)]
struct Counts {
    interrupts: u64,
    switches: u64,
    kernel_ns: u64,
    other_ns: u64,
    /// The task that it executes; `None` if it is idle.
    task: Option<Task>,
    /// Whether another one waits for it.
    is_wanted: bool,
}

impl Check for Lockups {
    fn name(&self) -> &'static str {
        "lockups"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        let processors = kernel.processors()?;
        let mut found = Vec::new();
        for processor in processors.iter().filter(|one| one.online) {
            let counts = Counts::of(kernel, processor)?;
            let progress = self.processors.entry(processor.number);
            let progress = progress.or_insert_with(|| Progress::new(&counts, round.now));
            let limits = &round.rules.limits;
            found.extend(progress.update(processor.number, &counts, limits, round.now));
        }
        Ok(found)
    }
}

impl Progress {
    fn new(counts: &Counts, now: Duration) -> Self {
        Self {
            interrupts: Since::new(counts.interrupts, now),
            switches: Since::new(counts.switches, now),
            kernel_ns: counts.kernel_ns,
            other_ns: counts.other_ns,
        }
    }

    /// Takes what was counted; returns what is wrong.
    fn update(
        &mut self,
        number: u32,
        counts: &Counts,
        limits: &Limits,
        now: Duration,
    ) -> Option<Finding> {
        let Some(task) = &counts.task else {
            *self = Self::new(counts, now);
            return None;
        };
        let subject = format!("cpu {number}");
        let silent = self.interrupts.update(counts.interrupts, now);
        let same = self.switches.update(counts.switches, now);
        if same.is_zero() {
            (self.kernel_ns, self.other_ns) = (counts.kernel_ns, counts.other_ns);
        }
        let in_kernel = Duration::from_nanos(counts.kernel_ns.saturating_sub(self.kernel_ns));
        let elsewhere = Duration::from_nanos(counts.other_ns.saturating_sub(self.other_ns));
        if silent >= limits.hard_lockup_s {
            let detail = format!(
                "it takes no interrupts for {} s, in {}",
                silent.as_secs(),
                task.subject()
            );
            return Some(Finding::new(Kind::HardLockup, subject, detail));
        }
        // Most of the time: a program that computes makes calls, too. And a task that is alone on its
        // processor may stay there.
        let is_in_kernel = in_kernel >= (in_kernel + elsewhere).mul_f64(IN_KERNEL_MIN)
            && in_kernel >= same.mul_f64(COUNTED_MIN);
        let locked = counts.is_wanted && same >= limits.soft_lockup_s && is_in_kernel;
        locked.then(|| {
            let detail = format!(
                "it stays in the kernel for {} s, in {}",
                same.as_secs(),
                task.subject()
            );
            Finding::new(Kind::SoftLockup, subject, detail)
        })
    }
}

impl Counts {
    fn of(kernel: &Kernel<'_>, processor: &Processor) -> Result<Self, RunningError> {
        let queue = kernel.per_cpu(processor, "runqueues", "rq")?;
        let idle = queue.number("idle")?;
        let current = queue.follow("curr")?;
        let current = current.filter(|task| task.address() != idle);
        Ok(Self {
            interrupts: timer_interrupts(kernel, processor)?,
            switches: queue.number("nr_switches")?,
            kernel_ns: time_ns(kernel, processor, &KERNEL_TIMES)?,
            other_ns: time_ns(kernel, processor, &OTHER_TIMES)?,
            task: current.map(Task::of).transpose()?,
            is_wanted: queue.number("nr_running")? > 1,
        })
    }
}

/// Interrupts of its local APIC's timer.
fn timer_interrupts(kernel: &Kernel<'_>, processor: &Processor) -> Result<u64, RunningError> {
    let counts = kernel.per_cpu(processor, "irq_stat", "irq_cpustat_t")?;
    if let Ok(count) = counts.number("apic_timer_irqs") {
        return Ok(count);
    }
    // An array since Linux 7.2.
    let index = kernel
        .btf()?
        .enumerator("irq_stat_counts", "IRQ_COUNT_APIC_TIMER")?;
    counts.member("counts")?.element(index.into())?.value()
}

/// Time of these kinds that it has spent.
fn time_ns(
    kernel: &Kernel<'_>,
    processor: &Processor,
    kinds: &[&str],
) -> Result<u64, RunningError> {
    let times = kernel.per_cpu(processor, "kernel_cpustat", "kernel_cpustat")?;
    let times = times.member("cpustat")?;
    let mut sum = 0_u64;
    for name in kinds {
        let index = kernel.btf()?.enumerator("cpu_usage_stat", name)?;
        sum = sum.wrapping_add(times.element(index.into())?.value()?);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(interrupts: u64, switches: u64, kernel_s: u64) -> Counts {
        Counts {
            interrupts,
            switches,
            kernel_ns: kernel_s * 1_000_000_000,
            other_ns: 0,
            task: Some(Task {
                address: 1,
                id: 7,
                name: "spin".to_owned(),
            }),
            is_wanted: true,
        }
    }

    fn kinds(steps: &[(u64, Counts)]) -> Vec<Option<Kind>> {
        let limits = Limits::default();
        let mut progress = Progress::new(&steps[0].1, Duration::from_secs(steps[0].0));
        let update = |(now, counts): &(u64, Counts)| {
            let finding = progress.update(0, counts, &limits, Duration::from_secs(*now));
            finding.map(|finding| finding.kind)
        };
        steps.iter().map(update).collect()
    }

    #[test]
    fn without_interrupts_it_is_a_hard_lockup() {
        let steps = [
            (0, counts(5, 1, 0)),
            (9, counts(5, 1, 0)),
            (10, counts(5, 1, 0)),
        ];
        assert_eq!(kinds(&steps), [None, None, Some(Kind::HardLockup)]);
    }

    #[test]
    fn in_the_kernel_it_is_a_soft_lockup() {
        let steps = [
            (0, counts(1, 1, 0)),
            (19, counts(2, 1, 19)),
            (20, counts(3, 1, 20)),
        ];
        assert_eq!(kinds(&steps), [None, None, Some(Kind::SoftLockup)]);
    }

    #[test]
    fn lost_ticks_do_not_hide_it_and_programs_are_none() {
        let steps = [(0, counts(1, 1, 0)), (20, counts(3, 1, 7))];
        assert_eq!(kinds(&steps), [None, Some(Kind::SoftLockup)]);
        let program = Counts {
            other_ns: 2_000_000_000,
            ..counts(3, 1, 7)
        };
        assert_eq!(kinds(&[(0, counts(1, 1, 0)), (20, program)]), [None, None]);
    }

    #[test]
    fn a_task_that_is_alone_may_stay() {
        let alone = |mut counts: Counts| {
            counts.is_wanted = false;
            counts
        };
        let steps = [(0, alone(counts(1, 1, 0))), (30, alone(counts(2, 1, 30)))];
        assert_eq!(kinds(&steps), [None, None]);
    }

    #[test]
    fn a_program_that_computes_is_none() {
        let steps = [
            (0, counts(1, 1, 0)),
            (30, counts(2, 1, 3)),
            (60, counts(3, 1, 6)),
        ];
        assert_eq!(kinds(&steps), [None, None, None]);
    }

    #[test]
    fn neither_is_an_idle_processor() {
        let idle = |now| {
            let counts = Counts {
                task: None,
                ..counts(1, 1, 0)
            };
            (now, counts)
        };
        assert_eq!(kinds(&[idle(0), idle(100)]), [None, None]);
        assert_eq!(
            kinds(&[idle(0), (100, counts(1, 1, 0))])[1],
            Some(Kind::HardLockup)
        );
    }
}

//! How long the steps of a start take.

use std::time::{Duration, Instant};

use insula_abi as abi;
use serde::Serialize;

/// Durations of the steps of a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Timing {
    /// Loading the image into the node's memory; with files, including reading them.
    pub load_ns: u64,
    /// Allocating memory from base or pool.
    pub take_memory_ns: u64,
    /// Taking cores from base or pool.
    pub take_cores_ns: u64,
    /// Making tables and writing them to the node's memory.
    pub layout_ns: u64,
    /// From the module's start of the core to the kernel's first instruction.
    pub start_ns: u64,
    /// From the start of this process to the kernel's first instruction.
    pub total_ns: u64,
}

/// The measured steps.
#[derive(Clone, Copy)]
pub(super) enum Step {
    AllocateMemory,
    TakeCores,
    Layout,
    Load,
}

/// Time spent in each step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTimes([Duration; 4]);

impl StepTimes {
    /// Does a part of a step.
    pub(super) fn measure<T>(&mut self, step: Step, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.0[step as usize] += began.elapsed();
        result
    }

    /// The durations of a start, of which reading the image took `read`, from when the process began on.
    pub(super) fn timing(
        self,
        read: Duration,
        info: &abi::NodeInfo,
        tsc_khz: u32,
        began_tsc: u64,
    ) -> Timing {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let of = |step: Step| ns(self.0[step as usize]);
        Timing {
            load_ns: of(Step::Load).saturating_add(ns(read)),
            take_memory_ns: of(Step::AllocateMemory),
            take_cores_ns: of(Step::TakeCores),
            layout_ns: of(Step::Layout),
            start_ns: ticks_to_ns(info.start_tsc, info.entry_tsc, tsc_khz),
            total_ns: ticks_to_ns(began_tsc, info.entry_tsc, tsc_khz),
        }
    }
}

/// Nanoseconds between two values of the time stamp counter; 0 if the later one is missing.
pub(super) fn ticks_to_ns(from: u64, to: u64, tsc_khz: u32) -> u64 {
    let ticks = u128::from(to.saturating_sub(from));
    let ns = ticks * 1_000_000 / u128::from(tsc_khz.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks() {
        assert_eq!(ticks_to_ns(1000, 4000, 3_000_000), 1000);
        assert_eq!(ticks_to_ns(1000, 0, 3_000_000), 0);
        assert_eq!(ticks_to_ns(0, u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn time_is_booked_to_its_step() {
        let mut times = StepTimes::default();
        times.measure(Step::TakeCores, || {
            std::thread::sleep(Duration::from_millis(2))
        });
        let info = abi::NodeInfo {
            start_tsc: 2000,
            entry_tsc: 5000,
            ..Default::default()
        };
        let timing = times.timing(Duration::from_nanos(7), &info, 1_000_000, 1000);
        assert!(timing.take_cores_ns >= 2_000_000);
        assert_eq!(
            (timing.load_ns, timing.layout_ns, timing.take_memory_ns),
            (7, 0, 0)
        );
        assert_eq!((timing.start_ns, timing.total_ns), (3000, 4000));
    }
}

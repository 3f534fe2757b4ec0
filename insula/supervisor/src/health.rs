//! Health probe of a running node: its state as read from its kernel's memory.

use insula_driver::CallError;
use insula_node::{Handle, NodeLog};
use kimage::log::{Placement, RESCHEDULE_VECTOR};

/// Consecutive probes without an interrupt taken after which a node is unresponsive.
const MISSES_MAX: u32 = 5;
/// The same before the first interrupt taken: a booting kernel has interrupts off for a while, on a
/// slow machine for seconds.
const MISSES_MAX_BEFORE_FIRST: u32 = 60;

/// Result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// No fault found.
    Healthy,
    /// The kernel has panicked.
    Crashed,
    /// The kernel was halted from within the node.
    Halted,
    /// The first core has not taken an interrupt for several probes.
    Unresponsive,
}

/// Probes one run of a node.
pub(super) struct HealthProbe {
    /// Number of the node's start.
    start: u64,
    /// `None` if the kernel's log cannot be read.
    log: Option<NodeLog>,
    /// Known once the kernel has chosen its address.
    placement: Option<Placement>,
    interrupts: InterruptCount,
}

impl HealthProbe {
    pub(super) fn of(handle: &Handle) -> Self {
        Self {
            start: handle.info.starts,
            log: NodeLog::open(handle).ok(),
            placement: None,
            interrupts: InterruptCount::default(),
        }
    }

    /// Whether it belongs to the node's present run.
    pub(super) fn is_of(&self, handle: &Handle) -> bool {
        self.start == handle.info.starts
    }

    /// Whether the first core has ever taken a probe's interrupt.
    pub(super) fn has_taken_interrupts(&self) -> bool {
        self.interrupts.has_advanced
    }

    /// Probes once, and sends the node an interrupt that the next probe checks for, unless that
    /// would only disturb a program.
    ///
    /// # Errors
    /// The module's error.
    pub(super) fn check(&mut self, handle: &Handle) -> Result<Health, CallError> {
        let Some(log) = &self.log else {
            return Ok(Health::Healthy);
        };
        self.placement = self.placement.or_else(|| log.locate());
        let Some(placement) = self.placement else {
            return Ok(Health::Healthy);
        };
        if log.panicked(placement).unwrap_or(false) {
            return Ok(Health::Crashed);
        }
        if log.in_program(placement).unwrap_or(false) {
            self.interrupts.skip();
            return Ok(Health::Healthy);
        }
        // What cannot be read proves nothing.
        let Ok(Some(count)) = log.resched_count(placement) else {
            return Ok(Health::Healthy);
        };
        self.interrupts.record(count);
        handle.node.interrupt(0, RESCHEDULE_VECTOR.into())?;
        Ok(match self.interrupts.misses {
            0 => Health::Healthy,
            _ if log.halted(placement).unwrap_or(false) => Health::Halted,
            _ if self.interrupts.is_stuck() => Health::Unresponsive,
            _ => Health::Healthy,
        })
    }
}

/// Tracks a core's count of interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InterruptCount {
    last: Option<u32>,
    /// Whether the count has ever advanced.
    has_advanced: bool,
    /// Consecutive probes at which it had not advanced.
    misses: u32,
}

impl InterruptCount {
    /// Records the count of a probe.
    fn record(&mut self, count: u32) {
        let missed = self.last == Some(count);
        self.has_advanced |= self.last.is_some() && !missed;
        self.misses = if missed {
            self.misses.saturating_add(1)
        } else {
            0
        };
        self.last = Some(count);
    }

    /// Records that no interrupt is sent, so the next probe must not expect one.
    fn skip(&mut self) {
        (self.last, self.misses) = (None, 0);
    }

    fn is_stuck(self) -> bool {
        let most = match self.has_advanced {
            true => MISSES_MAX,
            false => MISSES_MAX_BEFORE_FIRST,
        };
        self.misses >= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_misses_when_the_count_stays() {
        let mut interrupts = InterruptCount::default();
        let misses = [7, 8, 8, 8, 9, 9, 0].map(|count| {
            interrupts.record(count);
            interrupts.misses
        });
        assert_eq!(misses, [0, 0, 1, 2, 0, 1, 0]);
    }

    #[test]
    fn a_probe_without_an_interrupt_cannot_miss() {
        let mut interrupts = InterruptCount::default();
        for count in [7, 8, 8] {
            interrupts.record(count);
        }
        interrupts.skip();
        interrupts.record(8);
        assert_eq!((interrupts.misses, interrupts.has_advanced), (0, true));
        interrupts.record(8);
        assert_eq!(interrupts.misses, 1);
    }

    #[test]
    fn a_booting_kernel_is_given_more_time() {
        let mut interrupts = InterruptCount::default();
        let probes_until_stuck = |interrupts: &mut InterruptCount, count| {
            let probes = (0..).take_while(|_| {
                interrupts.record(count);
                !interrupts.is_stuck()
            });
            probes.count() as u32
        };
        let before_first = probes_until_stuck(&mut interrupts, 0);
        assert_eq!(before_first, MISSES_MAX_BEFORE_FIRST);
        assert_eq!(probes_until_stuck(&mut interrupts, 1), MISSES_MAX);
    }
}

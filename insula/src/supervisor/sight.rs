//! Looking at a running node: what its kernel's own memory tells of its state.

use kimage::log::{Placement, RESCHEDULE_VECTOR};

use crate::driver::CallError;
use crate::node::{Handle, NodeLog};

/// Looks in a row at which a node has to be without a pulse to be called unresponsive.
const MISSES_MAX: u32 = 5;
/// The same before its first: a kernel that boots has its interrupts off for a while, on a slow
/// machine for seconds.
const MISSES_MAX_BEFORE_FIRST: u32 = 60;

/// What a node is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing is to be said against it.
    Well,
    /// Its kernel has panicked.
    Crashed,
    /// Its kernel has halted, as it was told to in the node.
    Halted,
    /// Its first core has not taken an interrupt for several looks.
    Unresponsive,
}

/// One life of a node, from a start to the next end, as seen by its supervisor.
pub(super) struct Sight {
    /// Which of the node's starts it is.
    start: u64,
    /// None when its memory cannot be read, or says nothing.
    log: Option<NodeLog>,
    /// Once the kernel runs and has put itself somewhere.
    placement: Option<Placement>,
    pulse: Pulse,
}

impl Sight {
    pub(super) fn of(handle: &Handle) -> Self {
        Self {
            start: handle.info.starts,
            log: NodeLog::open(handle).ok(),
            placement: None,
            pulse: Pulse::default(),
        }
    }

    /// Whether it is the node's present life that it sees.
    pub(super) fn is_of(&self, handle: &Handle) -> bool {
        self.start == handle.info.starts
    }

    /// Whether its first core has ever been seen to take an interrupt.
    pub(super) fn has_felt_a_pulse(&self) -> bool {
        self.pulse.was_there
    }

    /// Looks once. Sends the node an interrupt, whose effect is seen at the next look, unless that
    /// would only disturb a program.
    ///
    /// # Errors
    /// What the module answered to that.
    pub(super) fn look(&mut self, handle: &Handle) -> Result<Found, CallError> {
        let Some(log) = &self.log else {
            return Ok(Found::Well);
        };
        self.placement = self.placement.or_else(|| log.locate());
        let Some(placement) = self.placement else {
            return Ok(Found::Well);
        };
        if log.panicked(placement).unwrap_or(false) {
            return Ok(Found::Crashed);
        }
        if log.in_program(placement).unwrap_or(false) {
            self.pulse.leave_alone();
            return Ok(Found::Well);
        }
        // What cannot be read, or not yet, is no sign of anything.
        let Ok(Some(count)) = log.pulse(placement) else {
            return Ok(Found::Well);
        };
        self.pulse.feel(count);
        handle.node.interrupt(0, RESCHEDULE_VECTOR.into())?;
        Ok(match self.pulse.misses {
            0 => Found::Well,
            _ if log.halted(placement).unwrap_or(false) => Found::Halted,
            _ if self.pulse.is_gone() => Found::Unresponsive,
            _ => Found::Well,
        })
    }
}

/// Interrupts that a core has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pulse {
    last: Option<u32>,
    /// Whether it was ever felt.
    was_there: bool,
    /// How often in a row it was not.
    misses: u32,
}

impl Pulse {
    /// Feels it again.
    fn feel(&mut self, count: u32) {
        let missed = self.last == Some(count);
        self.was_there |= self.last.is_some() && !missed;
        self.misses = if missed {
            self.misses.saturating_add(1)
        } else {
            0
        };
        self.last = Some(count);
    }

    /// No interrupt is sent this time, since the core is well: the next look has nothing to miss.
    fn leave_alone(&mut self) {
        (self.last, self.misses) = (None, 0);
    }

    fn is_gone(self) -> bool {
        let most = match self.was_there {
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
    fn a_pulse_is_missed_when_nothing_is_counted() {
        let mut pulse = Pulse::default();
        let misses = [7, 8, 8, 8, 9, 9, 0].map(|count| {
            pulse.feel(count);
            pulse.misses
        });
        assert_eq!(misses, [0, 0, 1, 2, 0, 1, 0]);
    }

    #[test]
    fn what_was_not_asked_for_is_not_missed() {
        let mut pulse = Pulse::default();
        for count in [7, 8, 8] {
            pulse.feel(count);
        }
        pulse.leave_alone();
        pulse.feel(8);
        assert_eq!((pulse.misses, pulse.was_there), (0, true));
        pulse.feel(8);
        assert_eq!(pulse.misses, 1);
    }

    #[test]
    fn a_kernel_that_boots_is_given_more_time() {
        let mut pulse = Pulse::default();
        let looks_until_gone = |pulse: &mut Pulse, count| {
            let looks = (0..).take_while(|_| {
                pulse.feel(count);
                !pulse.is_gone()
            });
            looks.count() as u32
        };
        let before_first = looks_until_gone(&mut pulse, 0);
        assert_eq!(before_first, MISSES_MAX_BEFORE_FIRST);
        assert_eq!(looks_until_gone(&mut pulse, 1), MISSES_MAX);
    }
}

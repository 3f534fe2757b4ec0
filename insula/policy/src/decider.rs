//! Deciding, a sample at a time.

use std::collections::VecDeque;
use std::fmt;

use crate::condition::{Condition, Metric};
use crate::cost::Cost;
use crate::policy::Policy;
use crate::sample::Sample;

const HOUR_MS: u64 = 3_600_000;
/// So much of the time in which the conditions do not hold counts against that in which they did.
const FORGET: f64 = 0.25;
/// A sample counts for at most so long: what the load was between two that are further apart is not
/// known.
const GAP_MAX_MS: u64 = 5_000;
/// After so many failures in a row the wait is not doubled any more.
const DOUBLED_MAX: u32 = 6;

/// Where a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the base.
    Base,
    /// On the policy's node.
    Node,
}

impl Place {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Base => Self::Node,
            Self::Node => Self::Base,
        }
    }
}

/// What to do, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Where to move the program; `None`: it stays.
    pub to: Option<Place>,
    /// Why.
    pub reason: Reason,
}

/// Why a program is moved or stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// A condition does not hold.
    DoesNotHold(Condition, f64),
    /// A metric is not known.
    Unknown(Metric),
    /// There is no condition to go back.
    NoWayBack,
    /// The conditions have held for so long, in s, of what is needed.
    Held(f64, f64),
    /// The last move was too recently; so many seconds are left.
    Rests(f64),
    /// As many moves as are allowed were made within an hour.
    Limit(u32),
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DoesNotHold(condition, value) => {
                write!(formatter, "not {condition}, but {value:.1}")
            }
            Self::Unknown(metric) => write!(formatter, "{metric} is not known"),
            Self::NoWayBack => write!(formatter, "the policy has no conditions to go back"),
            Self::Held(held_s, needed_s) => {
                write!(
                    formatter,
                    "its conditions held for {held_s:.1} of {needed_s:.1} s"
                )
            }
            Self::Rests(left_s) => {
                write!(formatter, "it was moved recently: {left_s:.1} s to rest")
            }
            Self::Limit(moves) => write!(formatter, "it was moved {moves} times within an hour"),
        }
    }
}

/// Decides for one policy.
#[derive(Clone, Debug)]
pub struct Decider<'a> {
    policy: &'a Policy,
    place: Place,
    cost: Cost,
    /// Time for which the conditions to leave have held, in ms.
    held_ms: f64,
    last_ms: Option<u64>,
    /// Times of attempted moves within the last hour.
    moves: VecDeque<u64>,
    /// Moves in a row that have failed.
    failures: u32,
}

impl<'a> Decider<'a> {
    /// Begins with a program at a place.
    #[must_use]
    pub fn new(policy: &'a Policy, place: Place) -> Self {
        Self {
            policy,
            place,
            cost: Cost::default(),
            held_ms: 0.0,
            last_ms: None,
            moves: VecDeque::new(),
            failures: 0,
        }
    }

    /// Where the program is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Notes where the program is: others may move it, or start it anew.
    pub fn found_at(&mut self, place: Place) {
        if self.place != place {
            self.place = place;
            self.held_ms = 0.0;
        }
    }

    /// Decides by what is known now. If it is moved, [`Self::moved`] tells what came of it.
    pub fn decide(&mut self, sample: &Sample) -> Decision {
        let passed_ms = self.passed_ms(sample.at_ms);
        let first = unmet(conditions(self.policy, self.place), sample);
        match first {
            None => self.held_ms += passed_ms,
            Some(_) => self.held_ms = (self.held_ms - passed_ms * FORGET).max(0.0),
        }
        let needed_ms = self.needed_ms();
        let held = Reason::Held(self.held_ms / 1e3, needed_ms / 1e3);
        let reason = first.or_else(|| self.limit(sample.at_ms));
        match reason {
            None if self.held_ms >= needed_ms => Decision {
                to: Some(self.place.other()),
                reason: held,
            },
            reason => Decision {
                to: None,
                reason: reason.unwrap_or(held),
            },
        }
    }

    /// Notes that the program was moved, with the time in ms for which it stood still; or, with
    /// `None`, that it could not be.
    pub fn moved(&mut self, at_ms: u64, stopped_ms: Option<f64>) {
        self.moves.push_back(at_ms);
        self.held_ms = 0.0;
        match stopped_ms {
            Some(stopped_ms) => {
                self.place = self.place.other();
                self.cost.learn(stopped_ms);
                self.failures = 0;
            }
            None => self.failures = (self.failures + 1).min(DOUBLED_MAX),
        }
    }

    fn passed_ms(&mut self, at_ms: u64) -> f64 {
        let passed = self.last_ms.map_or(0, |last| at_ms.saturating_sub(last));
        self.last_ms = Some(at_ms);
        passed.min(GAP_MAX_MS) as f64
    }

    /// Time for which the conditions must have held, in ms.
    fn needed_ms(&self) -> f64 {
        let least_ms = f64::from(self.policy.for_s) * 1e3;
        let cost_ms = self.cost.expected_ms() * f64::from(self.policy.stop_weight);
        least_ms.max(cost_ms) * f64::from(1 << self.failures)
    }

    /// What forbids a move now.
    fn limit(&mut self, at_ms: u64) -> Option<Reason> {
        while self
            .moves
            .front()
            .is_some_and(|&time| time + HOUR_MS <= at_ms)
        {
            self.moves.pop_front();
        }
        let rest_ms = u64::from(self.policy.rest_s) * 1000;
        let rests_until = self.moves.back().map_or(0, |last| last + rest_ms);
        if at_ms < rests_until {
            return Some(Reason::Rests((rests_until - at_ms) as f64 / 1e3));
        }
        let count = u32::try_from(self.moves.len()).unwrap_or(u32::MAX);
        (count >= self.policy.moves_per_hour).then_some(Reason::Limit(count))
    }
}

/// The conditions under which a program leaves a place.
pub(crate) fn conditions(policy: &Policy, place: Place) -> &[Condition] {
    match place {
        Place::Base => &policy.when,
        Place::Node => &policy.back,
    }
}

/// Why not all conditions hold; `None` if they do.
pub(crate) fn unmet(conditions: &[Condition], sample: &Sample) -> Option<Reason> {
    if conditions.is_empty() {
        return Some(Reason::NoWayBack);
    }
    conditions.iter().find_map(|condition| {
        let value = sample.values.get(&condition.metric);
        match (condition.holds(sample), value) {
            (Some(true), _) => None,
            (Some(false), Some(&value)) => Some(Reason::DoesNotHold(*condition, value)),
            _ => Some(Reason::Unknown(condition.metric)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::policy;

    fn sample(at_s: u64, pressure: f64) -> Sample {
        Sample {
            policy: String::new(),
            at_ms: at_s * 1000,
            values: [(Metric::PressureCpu, pressure)].into(),
        }
    }

    fn usual() -> Policy {
        policy(&["pressure-cpu > 40"], &["pressure-cpu < 10"])
    }

    /// Seconds of the first move under a load that is a function of time.
    fn first_move(decider: &mut Decider<'_>, load: impl Fn(u64) -> f64) -> Option<u64> {
        (0..10_000).find(|&at_s| decider.decide(&sample(at_s, load(at_s))).to.is_some())
    }

    #[test]
    fn the_conditions_must_hold_for_a_while() {
        let policy = usual();
        let mut decider = Decider::new(&policy, Place::Base);
        assert_eq!(first_move(&mut decider, |_| 41.0), Some(10));
        let mut decider = Decider::new(&policy, Place::Base);
        assert_eq!(first_move(&mut decider, |_| 40.0), None);
    }

    #[test]
    fn short_peaks_are_forgotten_and_frequent_ones_are_not() {
        let policy = usual();
        let peaks = |every: u64| move |at: u64| if at.is_multiple_of(every) { 90.0 } else { 20.0 };
        assert_eq!(
            first_move(&mut Decider::new(&policy, Place::Base), peaks(10)),
            None
        );
        assert!(first_move(&mut Decider::new(&policy, Place::Base), peaks(2)).is_some());
    }

    #[test]
    fn between_the_thresholds_it_stays_where_it_is() {
        let policy = usual();
        for place in [Place::Base, Place::Node] {
            assert_eq!(
                first_move(&mut Decider::new(&policy, place), |_| 25.0),
                None
            );
        }
        let back = first_move(&mut Decider::new(&policy, Place::Node), |_| 5.0);
        assert_eq!(back, Some(10));
    }

    #[test]
    fn a_move_that_costs_more_needs_a_longer_load() {
        let policy = usual();
        let mut decider = Decider::new(&policy, Place::Node);
        decider.moved(0, Some(2_000.0));
        assert_eq!(decider.place(), Place::Base);
        assert_eq!(first_move(&mut decider, |_| 90.0), Some(40));
    }

    #[test]
    fn a_failed_move_doubles_the_wait() {
        let policy = Policy {
            rest_s: 0,
            ..usual()
        };
        let mut decider = Decider::new(&policy, Place::Base);
        decider.decide(&sample(0, 90.0));
        decider.moved(0, None);
        assert_eq!(decider.place(), Place::Base);
        assert_eq!(first_move(&mut decider, |_| 90.0), Some(20));
    }

    #[test]
    fn after_a_move_it_rests() {
        let policy = usual();
        let mut decider = Decider::new(&policy, Place::Node);
        decider.moved(0, Some(1.0));
        assert_eq!(first_move(&mut decider, |_| 90.0), Some(30));
        assert_eq!(
            decider.decide(&sample(31, 90.0)).to,
            Some(Place::Node),
            "it is decided again until it was done"
        );
    }

    #[test]
    fn what_is_not_known_moves_nothing() {
        let policy = usual();
        let mut decider = Decider::new(&policy, Place::Base);
        let decision = decider.decide(&Sample::default());
        assert_eq!(decision.reason, Reason::Unknown(Metric::PressureCpu));
        // Two samples far apart tell little of the time between them.
        let decision = decider.decide(&sample(5_000, 90.0));
        assert_eq!(decision.reason, Reason::Held(5.0, 10.0));
    }

    #[test]
    fn without_conditions_it_does_not_go_back() {
        let policy = policy(&["pressure-cpu > 40"], &[]);
        let mut decider = Decider::new(&policy, Place::Node);
        assert_eq!(decider.decide(&sample(0, 0.0)).reason, Reason::NoWayBack);
    }

    #[test]
    fn a_program_found_elsewhere_is_decided_upon_anew() {
        let policy = usual();
        let mut decider = Decider::new(&policy, Place::Base);
        for at_s in 0..9 {
            decider.decide(&sample(at_s, 90.0));
        }
        decider.found_at(Place::Node);
        decider.found_at(Place::Base);
        assert_eq!(
            decider.decide(&sample(9, 90.0)).reason,
            Reason::Held(1.0, 10.0)
        );
    }
}

//! Playing a recorded load, and the best that could have been done.
//!
//! What is lost is counted in seconds: on the base those in which the conditions to leave it hold, on
//! the node likewise, and for each move the time that the program stands still, by the policy's
//! `stop_weight`. A trace has the load as it was where the program was recorded: how the load
//! would have changed with the move, it does not tell.

use crate::decider::{Decider, Place, conditions, unmet};
use crate::policy::Policy;
use crate::sample::Sample;

/// A move that a policy makes.
#[derive(Clone, Debug, PartialEq)]
pub struct MoveMade {
    /// When, in ms.
    pub at_ms: u64,
    /// Where to.
    pub to: Place,
    /// Why.
    pub reason: String,
}

/// What is lost in a trace, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    /// By the policy.
    pub policy_s: f64,
    /// At best, had all of the trace been known from the beginning.
    pub best_s: f64,
    /// Without a move, on the base.
    pub base_s: f64,
    /// With one move to the node, at the beginning.
    pub node_s: f64,
}

/// What a policy does with a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Its moves.
    pub moves: Vec<MoveMade>,
    /// What is lost.
    pub losses: Losses,
}

/// Plays a trace through a policy. The program begins on the base; each move stops it for
/// `stopped_ms`.
#[must_use]
pub fn simulate(policy: &Policy, trace: &[Sample], stopped_ms: f64) -> Outcome {
    let cost_s = stopped_ms / 1e3 * f64::from(policy.stop_weight);
    let steps: Vec<Step> = steps(policy, trace);
    let (moves, policy_s) = play(policy, trace, &steps, (stopped_ms, cost_s));
    let all = |at: fn(&Step) -> f64| steps.iter().map(at).sum::<f64>();
    Outcome {
        moves,
        losses: Losses {
            policy_s,
            best_s: best_s(&steps, cost_s),
            base_s: all(|step| step.base_s),
            node_s: cost_s + all(|step| step.node_s),
        },
    }
}

/// What is lost from a sample to the next one, at each place.
struct Step {
    base_s: f64,
    node_s: f64,
}

fn steps(policy: &Policy, trace: &[Sample]) -> Vec<Step> {
    let lost = |place: Place, sample: &Sample, passed_s: f64| match unmet(
        conditions(policy, place),
        sample,
    ) {
        None => passed_s,
        Some(_) => 0.0,
    };
    let pairs = trace.windows(2);
    pairs
        .map(|pair| {
            let passed_s = (pair[1].at_ms - pair[0].at_ms) as f64 / 1e3;
            Step {
                base_s: lost(Place::Base, &pair[0], passed_s),
                node_s: lost(Place::Node, &pair[0], passed_s),
            }
        })
        .collect()
}

/// Plays it. Returns the moves, and what is lost.
fn play(
    policy: &Policy,
    trace: &[Sample],
    steps: &[Step],
    (stopped_ms, cost_s): (f64, f64),
) -> (Vec<MoveMade>, f64) {
    let mut decider = Decider::new(policy, Place::Base);
    let (mut moves, mut lost_s) = (Vec::new(), 0.0);
    for (sample, step) in trace.iter().zip(steps) {
        let decision = decider.decide(sample);
        if let Some(to) = decision.to {
            decider.moved(sample.at_ms, Some(stopped_ms));
            lost_s += cost_s;
            moves.push(MoveMade {
                at_ms: sample.at_ms,
                to,
                reason: decision.reason.to_string(),
            });
        }
        lost_s += match decider.place() {
            Place::Base => step.base_s,
            Place::Node => step.node_s,
        };
    }
    (moves, lost_s)
}

/// The least that can be lost, by dynamic programming: at each step from where it is cheapest to come.
fn best_s(steps: &[Step], cost_s: f64) -> f64 {
    let begin = (0.0_f64, cost_s);
    let (base, node) = steps.iter().fold(begin, |(base, node), step| {
        (
            base.min(node + cost_s) + step.base_s,
            node.min(base + cost_s) + step.node_s,
        )
    });
    base.min(node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::condition::Metric;
    use crate::policy::tests::policy;

    fn usual() -> Policy {
        policy(&["pressure-cpu > 40"], &["pressure-cpu < 10"])
    }

    /// A sample each second.
    fn trace(loads: impl IntoIterator<Item = f64>) -> Vec<Sample> {
        let samples = loads.into_iter().zip(0..);
        samples
            .map(|(load, at_s): (f64, u64)| Sample {
                policy: "shop".to_owned(),
                at_ms: at_s * 1000,
                values: [(Metric::PressureCpu, load)].into(),
            })
            .collect()
    }

    #[test]
    fn a_load_that_lasts_is_left() {
        let busy = std::iter::repeat_n(90.0, 600);
        let outcome = simulate(
            &usual(),
            &trace(busy.chain(std::iter::repeat_n(5.0, 601))),
            100.0,
        );
        let times: Vec<_> = outcome
            .moves
            .iter()
            .map(|one| (one.at_ms, one.to))
            .collect();
        assert_eq!(times, [(10_000, Place::Node), (609_000, Place::Base)]);
        let Losses {
            policy_s,
            best_s,
            base_s,
            node_s,
        } = outcome.losses;
        // Ten seconds and nine, as the one before the load's end counts, and two moves of 2 s.
        assert!((policy_s - 23.0).abs() < 1e-6, "{policy_s}");
        assert!((best_s - 4.0).abs() < 1e-6, "{best_s}");
        assert!((base_s - 600.0).abs() < 1e-6, "{base_s}");
        assert!((node_s - 602.0).abs() < 1e-6, "{node_s}");
    }

    #[test]
    fn peaks_that_are_not_worth_a_move_are_stood() {
        let loads = (0..1000).map(|at| if at % 60 < 5 { 90.0 } else { 20.0 });
        let outcome = simulate(&usual(), &trace(loads), 100.0);
        assert!(outcome.moves.is_empty());
    }

    /// An hour of load, by its shape, and how much more the policy loses than the best.
    #[test]
    fn near_the_best_for_loads_of_many_shapes() {
        let busy = |is_busy: bool| if is_busy { 90.0 } else { 5.0 };
        let shapes: [(&str, &dyn Fn(u64) -> f64); 5] = [
            ("once", &|at| busy(at > 1200)),
            ("phases of 5 min", &|at| busy(at % 600 < 300)),
            ("phases of 1 min", &|at| busy(at % 120 < 60)),
            ("peaks of 5 s each minute", &|at| busy(at % 60 < 5)),
            ("half of each 20 s", &|at| busy(at % 20 < 10)),
        ];
        for (shape, load) in shapes {
            let policy = Policy {
                moves_per_hour: 60,
                ..usual()
            };
            // Worth as much as the time for which the conditions must hold.
            let losses = simulate(&policy, &trace((0..3600).map(load)), 500.0).losses;
            println!("{shape}: {losses:?}");
            assert!(
                losses.policy_s <= 3.0 * losses.best_s + 10.0,
                "{shape}: {losses:?}"
            );
        }
    }

    proptest! {
        /// Phases of load of random length and height.
        #[test]
        fn limits_are_kept_and_nothing_is_better_than_the_best(
            phases in prop::collection::vec((1_usize..400, 0.0..100.0), 1..40),
            stopped_ms in 0.0..2000.0,
        ) {
            let loads = phases.into_iter().flat_map(|(length, load)| std::iter::repeat_n(load, length));
            let policy = usual();
            let outcome = simulate(&policy, &trace(loads), stopped_ms);
            let Losses { policy_s, best_s, base_s, node_s } = outcome.losses;
            for other in [policy_s, base_s, node_s] {
                prop_assert!(best_s <= other + 1e-6);
            }
            let times: Vec<_> = outcome.moves.iter().map(|one| one.at_ms).collect();
            for pair in times.windows(2) {
                prop_assert!(pair[1] - pair[0] >= u64::from(policy.rest_s) * 1000);
            }
            let in_an_hour = policy.moves_per_hour as usize + 1;
            for run in times.windows(in_an_hour) {
                prop_assert!(run[in_an_hour - 1] - run[0] >= 3_600_000);
            }
            let alternates = outcome.moves.windows(2).all(|pair| pair[0].to != pair[1].to);
            prop_assert!(alternates);
        }
    }
}

//! A policy at work.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::discriminant;
use std::path::Path;

use insula_base::error_text::plain;
use insula_driver::Driver;
use insula_policy::{Decider, Decision, Measure, Metric, Place, Policy, Sample};
use serde::Serialize;

use super::place;
use super::program::{move_to, pid_of, tree};

/// A policy, and what is known of its program.
pub(super) struct Runner<'a> {
    policy: &'a Policy,
    measure: Measure<'a>,
    /// Once the program was found.
    decider: Option<Decider<'a>>,
    /// What was told last: the same is not told again.
    told: Option<Decision>,
}

/// What was decided, and what came of it.
pub(super) struct Decided<'a> {
    policy: &'a Policy,
    sample: Sample,
    place: Place,
    decision: Decision,
    /// Of a move that was made: for each process its id, and the ms for which it stood still, or why
    /// it could not be moved.
    moved: Vec<(i32, Result<f64, String>)>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(policy: &'a Policy) -> Self {
        Self {
            policy,
            measure: Measure::new(policy, Path::new("/proc")),
            decider: None,
            told: None,
        }
    }

    /// The load now; `None` if the program does not run.
    pub(super) fn sample(&mut self, at_ms: u64) -> Option<Sample> {
        let pid = pid_of(&self.policy.pid_file)?;
        Some(Sample {
            policy: self.policy.name.to_string(),
            at_ms,
            values: self.measure.values(pid),
        })
    }

    /// Measures, decides, and moves the program, unless there is no driver: then a move is only
    /// assumed. Returns what there is to tell.
    pub(super) fn step(&mut self, at_ms: u64, driver: Option<&Driver>) -> Option<Decided<'a>> {
        let pid = pid_of(&self.policy.pid_file)?;
        let found = match insula_migrate::is_on_node(pid).ok()? {
            true => Place::Node,
            false => Place::Base,
        };
        let sample = self.sample(at_ms)?;
        let decider = self
            .decider
            .get_or_insert_with(|| Decider::new(self.policy, found));
        if driver.is_some() {
            decider.found_at(found);
        }
        let place = decider.place();
        let decision = decider.decide(&sample);
        let mut moved = Vec::new();
        if let Some(to) = decision.to {
            if let Some(driver) = driver {
                moved = move_all(driver, self.policy, pid, to);
            }
            decider.moved(at_ms, stopped_ms(&moved));
        }
        let is_new = self.told.is_none_or(|told| differs(&told, &decision));
        self.told = Some(decision);
        is_new.then_some(Decided {
            policy: self.policy,
            sample,
            place,
            decision,
            moved,
        })
    }
}

/// Whether a decision tells something new: not only another value.
fn differs(one: &Decision, other: &Decision) -> bool {
    other.to.is_some() || discriminant(&one.reason) != discriminant(&other.reason)
}

/// Moves a program's process, and then its descendants. If the first cannot be moved, they stay.
fn move_all(
    driver: &Driver,
    policy: &Policy,
    pid: i32,
    to: Place,
) -> Vec<(i32, Result<f64, String>)> {
    let mut all = Vec::new();
    for one in tree(pid) {
        let moved = move_to(driver, one, (to, &policy.node));
        let moved = moved.map(|moved| moved.stopped_for.as_secs_f64() * 1e3);
        let moved = moved.map_err(|error| plain(&error.to_string()).replace('\n', " "));
        let goes_on = moved.is_ok() || one != pid;
        all.push((one, moved));
        if !goes_on {
            break;
        }
    }
    all
}

/// Time for which a program stood still, the longest of its processes; 0 if none was to be moved;
/// `None` if its first one could not be.
fn stopped_ms(moved: &[(i32, Result<f64, String>)]) -> Option<f64> {
    if matches!(moved.first(), Some((_, Err(_)))) {
        return None;
    }
    let times = moved.iter().filter_map(|(_, moved)| moved.as_ref().ok());
    Some(times.copied().fold(0.0, f64::max))
}

impl Decided<'_> {
    pub(super) fn view(&self) -> DecidedView<'_> {
        let moved = self.moved.iter().map(|(pid, moved)| MovedProcess {
            pid: *pid,
            stopped_ms: moved.as_ref().ok().copied(),
            error: moved.as_ref().err().cloned(),
        });
        DecidedView {
            policy: self.policy.name.as_str(),
            at_ms: self.sample.at_ms,
            load: &self.sample.values,
            place: place(self.policy, self.place),
            to: self.decision.to.map(|to| place(self.policy, to)),
            reason: self.decision.reason.to_string(),
            moved: moved.collect(),
        }
    }
}

/// A decision as JSON shows it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DecidedView<'a> {
    /// The policy's name.
    policy: &'a str,
    /// When it was made, in ms since the start.
    at_ms: u64,
    /// What was measured.
    load: &'a BTreeMap<Metric, f64>,
    /// Where the program was: `base`, or the node.
    place: &'a str,
    /// Where it is to go, if it is to be moved.
    to: Option<&'a str>,
    /// Why.
    reason: String,
    /// Its processes that were moved, or could not be.
    moved: Vec<MovedProcess>,
}

/// A process that was to be moved.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct MovedProcess {
    /// Its id on the base.
    pid: i32,
    /// For how long it stood still, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_ms: Option<f64>,
    /// Why it could not be moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl fmt::Display for Decided<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_s = self.sample.at_ms as f64 / 1e3;
        write!(formatter, "{}: {at_s:.1} s: ", self.policy.name)?;
        match self.decision.to {
            Some(to) => write!(formatter, "to '{}'", place(self.policy, to))?,
            None => write!(formatter, "stays on '{}'", place(self.policy, self.place))?,
        }
        write!(formatter, ": {}", self.decision.reason)?;
        for (pid, moved) in &self.moved {
            match moved {
                Ok(stopped_ms) => write!(
                    formatter,
                    "; process {pid} stood still for {stopped_ms:.1} ms"
                )?,
                Err(error) => write!(formatter, "; {error}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_stands_still_as_long_as_its_slowest_process() {
        let failed = || Err("no".to_owned());
        assert_eq!(stopped_ms(&[]), Some(0.0));
        assert_eq!(
            stopped_ms(&[(1, Ok(2.0)), (2, failed()), (3, Ok(5.0))]),
            Some(5.0)
        );
        assert_eq!(stopped_ms(&[(1, failed())]), None);
    }
}

//! A policy, as written in a file.

use std::path::PathBuf;

use insula_driver::name::Name;
use serde::Deserialize;

use crate::condition::{Condition, Metric};

/// When a program of the base is moved to a node of the lightweight kernel, and back.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Name of the policy.
    #[cfg_attr(feature = "schemars", schemars(with = "String"))]
    pub name: Name,
    /// File with the process id of the program, as a service manager reads it; its children are moved
    /// with it.
    pub pid_file: PathBuf,
    /// The node, of the lightweight kernel, to which it is moved.
    #[cfg_attr(feature = "schemars", schemars(with = "String"))]
    pub node: Name,
    /// Conditions, such as `pressure-cpu > 40`: while all hold, the program should be on the node. The
    /// metrics are pressure-cpu, pressure-memory and pressure-io (percent of the last 10 s), run-queue,
    /// connections, latency-p50-ms and latency-p99-ms.
    #[cfg_attr(feature = "schemars", schemars(with = "Vec<String>"))]
    pub when: Vec<Condition>,
    /// Conditions: while all hold, it should be on the base; none: it is not moved back.
    #[serde(default)]
    #[cfg_attr(feature = "schemars", schemars(with = "Vec<String>"))]
    pub back: Vec<Condition>,
    /// Seconds for which they must have held, less a quarter of those in which they have not; 10 by
    /// default.
    #[serde(default = "default_for_s")]
    pub for_s: u32,
    /// Seconds after a move within which there is no other; 30 by default.
    #[serde(default = "default_rest_s")]
    pub rest_s: u32,
    /// Most moves within an hour; 12 by default.
    #[serde(default = "default_moves_per_hour")]
    pub moves_per_hour: u32,
    /// Cost of a move: as many seconds of load as each second that the program stands still; 20 by
    /// default. How long it does is measured at each move.
    #[serde(default = "default_stop_weight")]
    pub stop_weight: u32,
    /// TCP port whose connections are counted.
    pub port: Option<u16>,
    /// Program, and its arguments, that asks the service something each second: the time that it
    /// takes is the latency.
    #[serde(default)]
    pub probe: Vec<String>,
}

const fn default_for_s() -> u32 {
    10
}

const fn default_rest_s() -> u32 {
    30
}

const fn default_moves_per_hour() -> u32 {
    12
}

const fn default_stop_weight() -> u32 {
    20
}

/// What is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No condition.
    #[error("the policy has no condition under which the program is moved")]
    NoCondition,
    /// The metric has no source.
    #[error("`{0}` can only be measured with `{1}`")]
    NoSource(Metric, &'static str),
    /// The conditions to go and to come back can hold at the same time.
    #[error(
        "`when` and `back` could hold at the same time, and the program would be moved there and back"
    )]
    Overlap,
    /// No move could ever be made.
    #[error("`moves_per_hour` is 0")]
    NoMoves,
}

impl PolicyError {
    /// The key that it concerns.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::NoCondition | Self::NoSource(..) => "when",
            Self::Overlap => "back",
            Self::NoMoves => "moves_per_hour",
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoCondition => "give one, such as when = [\"pressure-cpu > 40\"]",
            Self::NoSource(..) => "add that key",
            Self::Overlap => {
                "compare one metric of `when` in `back`, too, with a lower threshold: \
                 back = [\"pressure-cpu < 10\"]"
            }
            Self::NoMoves => "remove the policy",
        }
    }
}

impl Policy {
    /// Checks that it makes sense.
    ///
    /// # Errors
    /// The first error.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.when.is_empty() {
            return Err(PolicyError::NoCondition);
        }
        for condition in self.when.iter().chain(&self.back) {
            self.has_source(condition.metric)?;
        }
        let is_apart = |one: &Condition| self.back.iter().any(|other| one.excludes(other));
        if !self.back.is_empty() && !self.when.iter().any(is_apart) {
            return Err(PolicyError::Overlap);
        }
        match self.moves_per_hour {
            0 => Err(PolicyError::NoMoves),
            _ => Ok(()),
        }
    }

    fn has_source(&self, metric: Metric) -> Result<(), PolicyError> {
        match metric {
            Metric::Connections if self.port.is_none() => {
                Err(PolicyError::NoSource(metric, "port"))
            }
            Metric::LatencyP50Ms | Metric::LatencyP99Ms if self.probe.is_empty() => {
                Err(PolicyError::NoSource(metric, "probe"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A policy with these conditions, and defaults.
    pub(crate) fn policy(when: &[&str], back: &[&str]) -> Policy {
        let text = serde_json::json!({
            "name": "shop", "pid_file": "/run/shop.pid", "node": "quiet",
            "when": when, "back": back,
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let cpu = "pressure-cpu > 40";
        let checked = |when: &[&str], back: &[&str]| policy(when, back).check();
        assert_eq!(checked(&[cpu], &[]), Ok(()));
        assert_eq!(checked(&[cpu], &["pressure-cpu < 10"]), Ok(()));
        assert_eq!(checked(&[], &[]), Err(PolicyError::NoCondition));
        assert_eq!(
            checked(&[cpu], &["pressure-cpu < 50"]),
            Err(PolicyError::Overlap)
        );
        assert_eq!(
            checked(&[cpu], &["run-queue < 1"]),
            Err(PolicyError::Overlap)
        );
        assert_eq!(
            checked(&["connections > 5"], &[]),
            Err(PolicyError::NoSource(Metric::Connections, "port"))
        );
        let none = Policy {
            moves_per_hour: 0,
            ..policy(&[cpu], &[])
        };
        assert_eq!(none.check(), Err(PolicyError::NoMoves));
    }
}

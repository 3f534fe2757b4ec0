//! Conditions on the load.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::sample::Sample;

/// What is measured of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Share of the last 10 s in which some task waited for a core, in percent (`/proc/pressure/cpu`).
    PressureCpu,
    /// The same for memory.
    PressureMemory,
    /// The same for input and output.
    PressureIo,
    /// Tasks of the base that run or want to (`procs_running` of `/proc/stat`).
    RunQueue,
    /// Established TCP connections to the policy's port.
    Connections,
    /// Median time that the policy's probe took, in ms, of the last 60.
    LatencyP50Ms,
    /// The 99th percentile of it.
    LatencyP99Ms,
}

/// All metrics.
const METRICS: [Metric; 7] = [
    Metric::PressureCpu,
    Metric::PressureMemory,
    Metric::PressureIo,
    Metric::RunQueue,
    Metric::Connections,
    Metric::LatencyP50Ms,
    Metric::LatencyP99Ms,
];

impl Metric {
    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PressureCpu => "pressure-cpu",
            Self::PressureMemory => "pressure-memory",
            Self::PressureIo => "pressure-io",
            Self::RunQueue => "run-queue",
            Self::Connections => "connections",
            Self::LatencyP50Ms => "latency-p50-ms",
            Self::LatencyP99Ms => "latency-p99-ms",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// How a metric is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `>`
    Above,
    /// `<`
    Below,
}

/// A condition on the load, such as `pressure-cpu > 40`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Condition {
    /// What is compared.
    pub metric: Metric,
    /// How.
    pub comparison: Comparison,
    /// With what.
    pub threshold: f64,
}

/// The text is no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no condition: expected a metric ({names}), `>` or `<`, and a number, such as \
     `pressure-cpu > 40`",
    names = METRICS.map(Metric::name).join(", ")
)]
pub struct ConditionError(pub String);

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, ConditionError> {
        let error = || ConditionError(text.to_owned());
        let (at, comparison) = match (text.find('>'), text.find('<')) {
            (Some(at), None) => (at, Comparison::Above),
            (None, Some(at)) => (at, Comparison::Below),
            _ => return Err(error()),
        };
        let (name, threshold) = (text[..at].trim(), text[at + 1..].trim());
        let metric = METRICS.into_iter().find(|metric| metric.name() == name);
        let threshold = threshold
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite());
        Ok(Self {
            metric: metric.ok_or_else(error)?,
            comparison,
            threshold: threshold.ok_or_else(error)?,
        })
    }
}

impl TryFrom<String> for Condition {
    type Error = ConditionError;

    fn try_from(text: String) -> Result<Self, ConditionError> {
        text.parse()
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.comparison {
            Comparison::Above => '>',
            Comparison::Below => '<',
        };
        write!(formatter, "{} {sign} {}", self.metric, self.threshold)
    }
}

impl Condition {
    /// Whether it holds; `None` if its metric is not known.
    #[must_use]
    pub fn holds(&self, sample: &Sample) -> Option<bool> {
        let value = *sample.values.get(&self.metric)?;
        Some(match self.comparison {
            Comparison::Above => value > self.threshold,
            Comparison::Below => value < self.threshold,
        })
    }

    /// Whether another condition on the same metric can never hold together with this one.
    #[must_use]
    pub fn excludes(&self, other: &Self) -> bool {
        let apart = |above: &Self, below: &Self| {
            above.comparison == Comparison::Above
                && below.comparison == Comparison::Below
                && below.threshold <= above.threshold
        };
        self.metric == other.metric && (apart(self, other) || apart(other, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_written_as_it_is_read() {
        for text in [
            "pressure-cpu > 40",
            "latency-p99-ms < 2.5",
            "connections > 0",
        ] {
            assert_eq!(text.parse::<Condition>().unwrap().to_string(), text);
        }
        assert!("run-queue>3".parse::<Condition>().is_ok());
    }

    #[test]
    fn other_texts_are_none() {
        for text in [
            "",
            ">",
            "pressure > 1",
            "pressure-cpu 40",
            "pressure-cpu > x",
            "pressure-cpu > nan",
            "1 < pressure-cpu > 2",
            "pressure-cpu = 4",
        ] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
    }

    #[test]
    fn conditions_that_exclude_each_other() {
        let condition = |text: &str| text.parse::<Condition>().unwrap();
        let above = condition("pressure-cpu > 40");
        assert!(above.excludes(&condition("pressure-cpu < 40")));
        assert!(condition("pressure-cpu < 10").excludes(&above));
        assert!(!above.excludes(&condition("pressure-cpu < 41")));
        assert!(!above.excludes(&condition("pressure-io < 10")));
    }
}

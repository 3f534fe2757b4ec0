//! The load at one time, and records of it.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::condition::Metric;

/// The load at one time, as a line of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Sample {
    /// Name of the policy for which it was taken.
    pub policy: String,
    /// When, in ms since the first one.
    pub at_ms: u64,
    /// What was measured; a metric that could not be is missing.
    #[serde(flatten)]
    pub values: BTreeMap<Metric, f64>,
}

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Read(#[from] std::io::Error),
    /// A line is not a sample.
    #[error("line {line}: {why}")]
    Line {
        /// Its number.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

/// Reads a trace: a sample in each line, as JSON, of all policies. Returns those of one policy.
///
/// # Errors
/// [`TraceError`]: also if the times of a policy do not grow.
pub fn read_trace(text: impl BufRead, policy: &str) -> Result<Vec<Sample>, TraceError> {
    let mut samples: Vec<Sample> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let refused = |why: String| TraceError::Line { line: number, why };
        let sample: Sample =
            serde_json::from_str(&line?).map_err(|error| refused(error.to_string()))?;
        if sample.policy != policy {
            continue;
        }
        if samples
            .last()
            .is_some_and(|last| last.at_ms >= sample.at_ms)
        {
            return Err(refused(
                "its time is not after that of the line before".to_owned(),
            ));
        }
        samples.push(sample);
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Sample>, TraceError> {
        read_trace(text.as_bytes(), "shop")
    }

    #[test]
    fn a_trace_is_read_as_it_is_written() {
        let sample = Sample {
            policy: "shop".to_owned(),
            at_ms: 1000,
            values: [(Metric::PressureCpu, 12.5), (Metric::Connections, 3.0)].into(),
        };
        let line = serde_json::to_string(&sample).unwrap();
        assert_eq!(
            line,
            r#"{"policy":"shop","at_ms":1000,"pressure-cpu":12.5,"connections":3.0}"#
        );
        assert_eq!(read(&line).unwrap(), [sample]);
    }

    #[test]
    fn other_policies_are_skipped() {
        let text = "{\"policy\":\"other\",\"at_ms\":5}\n{\"policy\":\"shop\",\"at_ms\":1}\n";
        assert_eq!(read(text).unwrap().len(), 1);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let twice = "{\"policy\":\"shop\",\"at_ms\":5}\n{\"policy\":\"shop\",\"at_ms\":5}\n";
        for (text, line) in [
            ("x", "line 1"),
            (twice, "line 2"),
            ("{\"policy\":\"shop\"}", "line 1"),
            ("{\"policy\":\"shop\",\"at_ms\":5,\"mood\":1}", "line 1"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(line), "{error}");
        }
    }
}

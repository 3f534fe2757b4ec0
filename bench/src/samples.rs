//! Measured values, by row id: one JSON object per line, so that those before a crash are not lost.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Name of the file in a machine's results.
pub const FILE: &str = "samples.jsonl";

/// All values of each id, in the order of measurement.
pub type Samples = BTreeMap<String, Vec<f64>>;

#[derive(Serialize, Deserialize)]
struct Sample {
    id: String,
    value: f64,
}

/// Writes samples.
#[derive(Debug)]
pub struct Recorder(File);

impl Recorder {
    /// Opens the file [`FILE`] in `folder`, to append.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join(FILE))?;
        Ok(Self(file))
    }

    /// Appends one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&self, id: &str, value: f64) -> io::Result<()> {
        let id = id.to_owned();
        let mut line = serde_json::to_string(&Sample { id, value })?;
        line.push('\n');
        (&self.0).write_all(line.as_bytes())
    }
}

/// Parses a [`Recorder`]'s file. A line that is cut short by the machine's end is left out.
#[must_use]
pub fn parse(text: &str) -> Samples {
    let mut samples = Samples::new();
    for line in text.lines() {
        if let Ok(Sample { id, value }) = serde_json::from_str(line) {
            samples.entry(id).or_default().push(value);
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read() {
        let folder = tempfile::tempdir().unwrap();
        for value in [1.5, 2.5] {
            let recorder = Recorder::new(folder.path()).unwrap();
            recorder.record("a", value).unwrap();
            recorder.record("b.c", -value).unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let samples = parse(&format!("{text}{{\"id\":\"a\",\"val"));
        assert_eq!(samples["a"], [1.5, 2.5]);
        assert_eq!(samples["b.c"], [-1.5, -2.5]);
    }
}

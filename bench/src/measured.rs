//! Measurements of one run, stored in a file for each benchmark.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::benchmark::{self, Benchmark};
use crate::circumstances::Circumstances;
use crate::samples::Samples;

/// All values of one benchmark, and the circumstances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The benchmark's name.
    pub benchmark: String,
    /// Date, machine and software.
    pub circumstances: Circumstances,
    /// Runs that the emulator's fault ended, and that were repeated.
    #[serde(rename = "spoilt")]
    pub emulator_faults: u32,
    /// Errors that kept it from measuring all rows.
    #[serde(rename = "complaints")]
    pub errors: Vec<String>,
    /// Values of each boot of the machine.
    pub boots: Vec<Samples>,
}

impl Measured {
    /// All values of an id, boot after boot.
    #[must_use]
    pub fn values(&self, id: &str) -> Vec<f64> {
        let boots = self.boots.iter().filter_map(|boot| boot.get(id));
        boots.flatten().copied().collect()
    }

    /// Stores it in `folder`, in place of an older one of the same benchmark.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        fs::write(path_of(folder, &self.benchmark), text)
    }
}

/// All measurements stored in `folder`, in the benchmarks' order.
///
/// # Errors
/// When a file cannot be read or is not ours.
pub fn stored(folder: &Path) -> io::Result<Vec<(&'static Benchmark, Measured)>> {
    let mut all = Vec::new();
    for &benchmark in benchmark::ALL {
        match fs::read(path_of(folder, benchmark.name)) {
            Ok(bytes) => all.push((benchmark, serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn path_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    /// A measurement of one boot, with these values.
    pub(crate) fn measured(benchmark: &str, samples: &[(&str, &[f64])]) -> Measured {
        let owned = |(id, values): &(&str, &[f64])| ((*id).to_owned(), values.to_vec());
        Measured {
            benchmark: benchmark.to_owned(),
            circumstances: Circumstances {
                date: "2026-01-02 03:04 UTC".to_owned(),
                commit: "abc".to_owned(),
                processor: "Some CPU, 2 cores".to_owned(),
                load: "0.10".to_owned(),
                others: 0.05,
                emulator: "QEMU".to_owned(),
                machine: "tcg, 4 cores".to_owned(),
                emulated: true,
            },
            emulator_faults: 0,
            errors: Vec::new(),
            boots: vec![samples.iter().map(owned).collect()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        for value in [1.0, 2.0] {
            let measured = fake::measured("cycle", &[("cycle.pool", &[value])]);
            measured.store(folder.path()).unwrap();
        }
        let stored = stored(folder.path()).unwrap();
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0].0.name, "cycle");
        assert_eq!(stored[0].1.values("cycle.pool"), [2.0]);
    }

    #[test]
    fn values_are_those_of_all_boots() {
        let mut measured = fake::measured("cycle", &[("cycle.pool", &[1.0, 2.0])]);
        measured
            .boots
            .push([("cycle.pool".to_owned(), vec![3.0])].into());
        measured.boots.push(Samples::new());
        assert_eq!(measured.values("cycle.pool"), [1.0, 2.0, 3.0]);
    }
}

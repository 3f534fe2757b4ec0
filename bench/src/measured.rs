//! What was measured in one go, kept in a file of its own for each benchmark.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::benchmark::{self, Benchmark};
use crate::circumstances::Circumstances;
use crate::samples::Samples;

/// All values of one benchmark, and under which circumstances they were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The benchmark's name.
    pub benchmark: String,
    /// When, where, with what.
    pub circumstances: Circumstances,
    /// How many runs the emulator spoilt, which were made again.
    pub spoilt: u32,
    /// What kept it from measuring all; nothing if nothing did.
    pub complaints: Vec<String>,
    /// The values of each boot of the machine.
    pub boots: Vec<Samples>,
}

impl Measured {
    /// All values of an id, boot after boot.
    #[must_use]
    pub fn values(&self, id: &str) -> Vec<f64> {
        let boots = self.boots.iter().filter_map(|boot| boot.get(id));
        boots.flatten().copied().collect()
    }

    /// Keeps it in `folder`, in the place of an older one of the same benchmark.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        fs::write(place(folder, &self.benchmark), text)
    }
}

/// All that is kept in `folder`, in the benchmarks' order.
///
/// # Errors
/// When a file cannot be read or is not ours.
pub fn kept(folder: &Path) -> io::Result<Vec<(&'static Benchmark, Measured)>> {
    let mut all = Vec::new();
    for &benchmark in benchmark::ALL {
        match fs::read(place(folder, benchmark.name)) {
            Ok(bytes) => all.push((benchmark, serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn place(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    /// Something measured in one boot, with these values.
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
            spoilt: 0,
            complaints: Vec::new(),
            boots: vec![samples.iter().map(owned).collect()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        for value in [1.0, 2.0] {
            let measured = fake::measured("cycle", &[("cycle.pool", &[value])]);
            measured.keep(folder.path()).unwrap();
        }
        let kept = kept(folder.path()).unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].0.name, "cycle");
        assert_eq!(kept[0].1.values("cycle.pool"), [2.0]);
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

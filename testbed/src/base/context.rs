//! Resources of a scenario.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::host::kernels::{Flavour, Sanitizer};
use crate::host::payload::equipment::NODE_INITRD_PATH;

/// Folder of the kernels, inside as on any Debian.
const BOOT: &str = "/boot";
/// File of a scenario's figures, one JSON object per line.
pub(crate) const FIGURES: &str = "figures.jsonl";

/// Resources of a scenario.
pub struct Context {
    soak: bool,
    results: PathBuf,
}

impl Context {
    /// Context of a run with short counts, or with long ones (`soak`). Files go to `results`.
    pub fn new(soak: bool, results: &Path) -> Self {
        Self {
            soak,
            results: results.to_owned(),
        }
    }

    /// Number of repetitions: `usual`, or `soak` in a long run.
    pub fn count(&self, usual: u64, soak: u64) -> u64 {
        self.select(usual, soak)
    }

    /// Selects `usual`, or `soak` in a long run.
    pub fn select<T>(&self, usual: T, soak: T) -> T {
        if self.soak { soak } else { usual }
    }

    /// The `uname -r` of the kernel whose version starts with `version`, as 6.1; of several it is
    /// the base's own, if that is a distribution's.
    ///
    /// # Errors
    /// When there is none.
    pub fn release(&self, version: &str) -> Result<String, Finding> {
        let prefix = format!("vmlinuz-{version}.");
        let names =
            fs::read_dir(BOOT)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names = names.collect::<Result<Vec<_>, std::io::Error>>()?;
        let own = own_release()?;
        let matching = names.iter().filter(|name| name.starts_with(&prefix));
        let releases = matching
            .filter_map(|name| name.strip_prefix("vmlinuz-"))
            .filter(|release| Sanitizer::of_release(release).is_none());
        releases
            .max_by_key(|&release| release == own)
            .map(str::to_owned)
            .ok_or_else(|| Finding::new(format!("{BOOT} has no {prefix}…")))
    }

    /// Version of the base's own kernel, for nodes that are to run the same.
    ///
    /// # Errors
    /// When it is not known.
    pub fn version_of_the_base(&self) -> Result<String, Finding> {
        let release = own_release()?;
        let parts: Vec<_> = release.split('.').take(2).collect();
        Ok(parts.join("."))
    }

    /// Version of the base's own kernel if it is none of Debian 12's.
    ///
    /// # Errors
    /// When it is not known.
    pub fn newer_version_of_the_base(&self) -> Result<Option<String>, Finding> {
        let own = self.version_of_the_base()?;
        let is_usual = Flavour::USUAL.iter().any(|usual| usual.name() == own);
        Ok((!is_usual).then_some(own))
    }

    /// Path of the kernel whose version starts with `version`.
    ///
    /// # Errors
    /// When there is none.
    pub fn kernel(&self, version: &str) -> Result<PathBuf, Finding> {
        Ok(Path::new(BOOT).join(format!("vmlinuz-{}", self.release(version)?)))
    }

    /// Initial file system of the test nodes. Its init understands `nonce=TEXT` and on the node's
    /// command line one of `do=idle|poweroff|reboot|halt|panic|compute|peer|resources`,
    /// `do=devices|disk_speed|stray|work|noise|sysrq-o|sysrq-b|panic-reset`.
    pub fn node_initrd(&self) -> &'static Path {
        Path::new(NODE_INITRD_PATH)
    }

    /// Folder for files that the run leaves for inspection.
    pub fn results(&self) -> &Path {
        &self.results
    }

    /// Prints a figure and stores it with the run's results.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn figure(&self, name: &str, value: f64, unit: &str) -> Result<(), Finding> {
        println!("{name}: {value} {unit}");
        let line = serde_json::json!({ "name": name, "value": value, "unit": unit });
        let path = self.results.join(FIGURES);
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(writeln!(file, "{line}")?)
    }
}

/// `uname -r`.
fn own_release() -> Result<String, Finding> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(release.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let context = Context::new(true, folder.path());
        context.figure("cycles", 1000.0, "1").unwrap();
        context.figure("cycle", 0.5, "s").unwrap();
        let text = fs::read_to_string(folder.path().join(FIGURES)).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains(r#""value":0.5"#), "{text}");
    }

    #[test]
    fn counts_follow_the_kind_of_run() {
        assert_eq!(Context::new(false, Path::new("/")).count(2, 9), 2);
        assert_eq!(Context::new(true, Path::new("/")).count(2, 9), 9);
    }
}

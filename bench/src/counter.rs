//! The emulator's plugin that counts what is executed inside, and what it has counted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testbed::project;

use crate::benchmark::Counted;
use crate::marks;

/// The plugin, and where it puts what it has counted in one boot.
pub(crate) struct Counter<'a> {
    asked: &'a Counted,
    plugin: &'a Path,
    folder: TempDir,
}

impl<'a> Counter<'a> {
    /// For one boot of a machine.
    pub(crate) fn new(asked: &'a Counted, plugin: &'a Path) -> io::Result<Self> {
        Ok(Self {
            asked,
            plugin,
            folder: tempfile::tempdir_in(project::build())?,
        })
    }

    /// What it writes to.
    fn file(&self) -> PathBuf {
        self.folder.path().join("counts.jsonl")
    }

    /// For QEMU's command line, where a comma ends a value unless doubled.
    pub(crate) fn words(&self) -> Vec<String> {
        let [plugin, file] =
            [self.plugin, &self.file()].map(|path| path.to_string_lossy().replace(',', ",,"));
        let lines = if self.asked.lines { "on" } else { "off" };
        let words = format!("{plugin},out={file},lines={lines}");
        vec!["-plugin".to_owned(), words]
    }

    /// What the benchmark makes of what was counted.
    pub(crate) fn samples(&self) -> io::Result<Vec<(&'static str, f64)>> {
        let counts = marks::parse(&fs::read_to_string(self.file())?)?;
        Ok((self.asked.samples)(&counts))
    }
}

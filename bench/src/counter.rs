//! The emulator's plugin that counts executed instructions, and its counts.

use std::fs;
use std::io;
use std::path::PathBuf;

use tempfile::TempDir;
use testbed::host::project;

use crate::benchmark::Counted;
use crate::equipment::CounterEquipment;
use crate::marks;

/// The plugin, and the folder for its counts of one boot.
pub(crate) struct Counter<'a> {
    evaluation: &'a Counted,
    equipment: &'a CounterEquipment,
    folder: TempDir,
}

impl<'a> Counter<'a> {
    /// Prepares the plugin for one boot of a machine.
    pub(crate) fn new(
        evaluation: &'a Counted,
        equipment: &'a CounterEquipment,
    ) -> io::Result<Self> {
        Ok(Self {
            evaluation,
            equipment,
            folder: tempfile::tempdir_in(project::build())?,
        })
    }

    /// Output file of the plugin.
    fn file(&self) -> PathBuf {
        self.folder.path().join("counts.jsonl")
    }

    /// Arguments for QEMU, where a comma ends a value unless doubled.
    pub(crate) fn words(&self) -> Vec<String> {
        let [plugin, file] = [&self.equipment.plugin, &self.file()]
            .map(|path| path.to_string_lossy().replace(',', ",,"));
        let lines = if self.evaluation.lines { "on" } else { "off" };
        let mut words = format!("{plugin},out={file},lines={lines}");
        if let Some(core) = self.evaluation.path_core {
            words += &format!(",path-core={core},path-end={}", self.equipment.path_end);
        }
        vec!["-plugin".to_owned(), words]
    }

    /// Values that the benchmark computes from the counts.
    pub(crate) fn samples(&self) -> io::Result<Vec<(&'static str, f64)>> {
        let counts = marks::parse(&fs::read_to_string(self.file())?)?;
        Ok((self.evaluation.samples)(&counts))
    }
}

//! What is wrong with a node's devices, for whoever looks at the node.
//!
//! It lies in a file beside the other notes of the node's life: a supervisor writes it, and the next one
//! anew.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::notes::Notes;

/// The file's name.
const FILE: &str = "failures";

/// A device that does not work, though the node runs. It is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFailure {
    /// Which device, in words.
    pub device: String,
    /// Why.
    pub why: String,
}

/// The devices of the node with this id that do not work, in its life that began at this time of the
/// time stamp counter. None if nobody can tell.
#[must_use]
pub fn failures(id: u32, start_tsc: u64) -> Vec<DeviceFailure> {
    read(Notes::of(id, start_tsc).folder())
}

fn read(folder: &Path) -> Vec<DeviceFailure> {
    let bytes = fs::read(folder.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// What a supervisor has found, kept where others find it.
#[derive(Debug)]
pub(super) struct Failures {
    notes: Notes,
    all: BTreeMap<String, String>,
}

impl Failures {
    /// None yet: what another supervisor has left is forgotten.
    pub(super) fn none(notes: Notes) -> Self {
        let none = Self {
            notes,
            all: BTreeMap::new(),
        };
        let _ = fs::remove_file(none.notes.folder().join(FILE));
        none
    }

    /// From now on this is why the device does not work, or it works. Whether that is news.
    pub(super) fn set(&mut self, device: &str, why: Option<&str>) -> bool {
        let before = match why {
            Some(why) => self.all.insert(device.to_owned(), why.to_owned()),
            None => self.all.remove(device),
        };
        let is_news = before.as_deref() != why;
        if is_news {
            // Then it is told in the journal only.
            let _ = self.write();
        }
        is_news
    }

    fn write(&self) -> io::Result<()> {
        let all = self.all.iter().map(|(device, why)| DeviceFailure {
            device: device.clone(),
            why: why.clone(),
        });
        let text = serde_json::to_vec(&all.collect::<Vec<_>>())?;
        let folder = self.notes.make_folder()?;
        // Whoever reads finds the old ones or the new ones.
        let new = folder.join(format!("{FILE}.new"));
        fs::write(&new, text)?;
        fs::rename(new, folder.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_found_until_the_device_works() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::below(folder.path(), 1, 7);
        let mut failures = Failures::none(notes.clone());
        assert!(failures.set("disk", Some("it is gone")));
        assert!(!failures.set("disk", Some("it is gone")), "that is known");
        assert!(failures.set("network", Some("no tap")));
        let found = read(notes.folder());
        assert_eq!(found.len(), 2);
        assert_eq!((&*found[0].device, &*found[0].why), ("disk", "it is gone"));
        assert!(failures.set("disk", None));
        assert!(!failures.set("disk", None));
        assert_eq!(read(notes.folder()).len(), 1);
        drop(Failures::none(notes.clone()));
        assert_eq!(read(notes.folder()), []);
    }
}

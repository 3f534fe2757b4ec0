//! Present failures of a node's devices, mirrored in a file for `insula ps` and `inspect`
//! ([`insula_node::attachment::failure`]).
//!
//! It is next to the checkpoints of the node's run; the next supervisor resets it.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use insula_node::attachment::failure::{DeviceFailure, FILE};

use super::checkpoint::Checkpoints;

/// The present failures, mirrored in the file.
#[derive(Debug)]
pub(super) struct Failures {
    checkpoints: Checkpoints,
    all: BTreeMap<String, String>,
}

impl Failures {
    /// Starts without failures, and removes the file of an earlier supervisor.
    pub(super) fn none(checkpoints: Checkpoints) -> Self {
        let none = Self {
            checkpoints,
            all: BTreeMap::new(),
        };
        let _ = fs::remove_file(none.checkpoints.folder().join(FILE));
        none
    }

    /// Sets or clears a device's failure; whether that is a change.
    pub(super) fn set(&mut self, device: &str, error: Option<&str>) -> bool {
        let before = match error {
            Some(error) => self.all.insert(device.to_owned(), error.to_owned()),
            None => self.all.remove(device),
        };
        let is_change = before.as_deref() != error;
        if is_change {
            // If it cannot be written, it is only logged.
            let _ = self.write();
        }
        is_change
    }

    fn write(&self) -> io::Result<()> {
        let all = self.all.iter().map(|(device, error)| DeviceFailure {
            device: device.clone(),
            error: error.clone(),
        });
        let text = serde_json::to_vec(&all.collect::<Vec<_>>())?;
        let folder = self.checkpoints.create_folder()?;
        // Replaced atomically for readers.
        let new = folder.join(format!("{FILE}.new"));
        fs::write(&new, text)?;
        fs::rename(new, folder.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use insula_node::attachment::failure::read;

    use super::*;

    #[test]
    fn failures_are_found_until_the_device_works() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::below(folder.path(), 1, 7);
        let mut failures = Failures::none(checkpoints.clone());
        assert!(failures.set("disk", Some("it is gone")));
        assert!(!failures.set("disk", Some("it is gone")), "no change");
        assert!(failures.set("network", Some("no tap")));
        let found = read(checkpoints.folder());
        assert_eq!(found.len(), 2);
        assert_eq!(
            (&*found[0].device, &*found[0].error),
            ("disk", "it is gone")
        );
        assert!(failures.set("disk", None));
        assert!(!failures.set("disk", None));
        assert_eq!(read(checkpoints.folder()).len(), 1);
        drop(Failures::none(checkpoints.clone()));
        assert_eq!(read(checkpoints.folder()), []);
    }
}

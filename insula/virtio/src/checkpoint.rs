//! Checkpoints of devices at work, for the next supervisor if this one is killed.
//!
//! They are files that exist as long as the node runs.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use insula_base::state::RUN;
use insula_node::attachment::failure::{run_folder, runs_prefix};

/// Size of a record in bytes: a page, which is written completely or not at all.
pub(super) const RECORD_SIZE: usize = 4096;

/// Checkpoints of one run of a node.
#[derive(Clone, Debug)]
pub(super) struct Checkpoints {
    folder: PathBuf,
    /// Common prefix of the folders of all runs of the node.
    prefix: String,
}

impl Checkpoints {
    /// Checkpoints of the node with this id that was started at this time of the time stamp
    /// counter. Another start time means another node or another run.
    pub(super) fn of(id: u32, start_tsc: u64) -> Self {
        Self::below(Path::new(RUN), id, start_tsc)
    }

    pub(super) fn below(folder: &Path, id: u32, start_tsc: u64) -> Self {
        Self {
            folder: run_folder(folder, id, start_tsc),
            prefix: runs_prefix(id),
        }
    }

    /// The folder, which may not exist.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates the folder if needed.
    pub(super) fn create_folder(&self) -> io::Result<&Path> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        Ok(&self.folder)
    }

    /// The checkpoint of a device.
    pub(super) fn device(&self, name: &str) -> DeviceCheckpoint {
        DeviceCheckpoint(self.folder.join(name))
    }

    /// Removes those of earlier runs of the node whose supervisors were killed.
    pub(super) fn remove_earlier(&self) {
        let all = self.folder.parent().map(fs::read_dir).into_iter().flatten();
        for entry in all.flatten().flatten() {
            let is_of_node = entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(&self.prefix));
            if is_of_node && entry.path() != self.folder {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Removes all of this run.
    pub(super) fn remove(&self) {
        // There may be none.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The checkpoint of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceCheckpoint(PathBuf);

impl DeviceCheckpoint {
    /// The checkpoint in this file.
    #[cfg(test)]
    pub(super) fn at(file: PathBuf) -> Self {
        Self(file)
    }

    /// Whether a backend has served the device.
    pub(super) fn exists(&self) -> bool {
        self.0.exists()
    }

    /// Takes the lock that the device's backend and its children hold until the last of them exits.
    /// `WouldBlock` if another process holds it.
    pub(super) fn lock(&self) -> io::Result<File> {
        let path = self.0.with_extension("lock");
        make_parent(&path)?;
        let file = File::create(path)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Opens the file for reading and writing.
    pub(super) fn open(&self) -> io::Result<CheckpointFile> {
        make_parent(&self.0)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.0)?;
        Ok(CheckpointFile(file))
    }

    /// Removes the file: the device has been reset, or will be.
    pub(super) fn remove(&self) {
        // There may be none.
        let _ = fs::remove_file(&self.0);
    }
}

fn make_parent(file: &Path) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new(RUN));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// An open checkpoint: records by number.
#[derive(Debug)]
pub(super) struct CheckpointFile(File);

impl CheckpointFile {
    /// A record, padded with zeroes; `None` if it was never written.
    pub(super) fn read(&self, number: usize) -> Option<Vec<u8>> {
        let mut record = vec![0; RECORD_SIZE];
        let read = self.0.read_at(&mut record, (number * RECORD_SIZE) as u64);
        read.is_ok_and(|count| count > 0).then_some(record)
    }

    /// Replaces a record.
    pub(super) fn write(&self, number: usize, record: &[u8]) -> io::Result<()> {
        self.0.write_all_at(record, (number * RECORD_SIZE) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_kept_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let [checkpoints, next, other] = [(1, 7), (1, 8), (11, 7)]
            .map(|(id, start)| Checkpoints::below(folder.path(), id, start));
        let device = checkpoints.device("disk-0");
        assert!(!device.exists());
        device.open().unwrap().write(1, b"second").unwrap();
        assert!(device.exists());
        let checkpoint_file = device.open().unwrap();
        assert_eq!(checkpoint_file.read(1).unwrap()[..7], *b"second\0");
        assert_eq!(checkpoint_file.read(2), None);
        device.remove();
        assert!(!device.exists());
        other.device("root").open().unwrap();
        next.device("root").open().unwrap();
        next.remove_earlier();
        assert!(!checkpoints.folder.exists());
        assert!(other.device("root").exists() && next.device("root").exists());
        next.remove();
        assert!(!next.folder.exists());
    }
}

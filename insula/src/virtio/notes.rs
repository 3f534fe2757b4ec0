//! What the supervisor of a node leaves to the next one, if it is killed: notes of devices at work.
//!
//! They lie in files as long as the node lives, and are what a process could not have told any more.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::state::RUN;

/// Room for each note, in bytes: a page, which is written whole or not at all.
pub(super) const NOTE_MAX: usize = 4096;

/// The notes of one life of a node.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    folder: PathBuf,
    /// How the folders of all its lives begin.
    lives: String,
}

impl Notes {
    /// Those of the node with this id, that was started at this time of the time stamp counter: one
    /// that was started at another time is another node, or has another life.
    pub(super) fn of(id: u32, start_tsc: u64) -> Self {
        Self::below(Path::new(RUN), id, start_tsc)
    }

    pub(super) fn below(folder: &Path, id: u32, start_tsc: u64) -> Self {
        let lives = format!("served-{id}-");
        Self {
            folder: folder.join(format!("{lives}{start_tsc:x}")),
            lives,
        }
    }

    /// Where they lie, if there are any.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder where they lie, unless it is there.
    pub(super) fn make_folder(&self) -> io::Result<&Path> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        Ok(&self.folder)
    }

    /// The notes of one of its devices.
    pub(super) fn device(&self, name: &str) -> DeviceNotes {
        DeviceNotes(self.folder.join(name))
    }

    /// Nobody needs those of the lives that the node had before, whose supervisors were killed.
    pub(super) fn forget_former(&self) {
        let all = self.folder.parent().map(fs::read_dir).into_iter().flatten();
        for entry in all.flatten().flatten() {
            let is_of_node = entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(&self.lives));
            if is_of_node && entry.path() != self.folder {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Nobody needs any of them.
    pub(super) fn forget(&self) {
        // There may be none.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The notes of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceNotes(PathBuf);

impl DeviceNotes {
    /// Those in this file.
    #[cfg(test)]
    pub(super) fn at(file: PathBuf) -> Self {
        Self(file)
    }

    /// Whether the device has been at work.
    pub(super) fn are_there(&self) -> bool {
        self.0.exists()
    }

    /// Held by the program that works on the device, and by all that it has started, until the last of
    /// them has ended: there is one such file at a time. `WouldBlock` if somebody else has it.
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

    /// The file, to read what there is and to write more.
    pub(super) fn open(&self) -> io::Result<Notebook> {
        make_parent(&self.0)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.0)?;
        Ok(Notebook(file))
    }

    /// The device has begun anew, or will.
    pub(super) fn forget(&self) {
        // There may be none.
        let _ = fs::remove_file(&self.0);
    }
}

fn make_parent(file: &Path) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new(RUN));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Notes that are open, by number.
#[derive(Debug)]
pub(super) struct Notebook(File);

impl Notebook {
    /// The note of that number, with zeroes behind it; none if it was never written.
    pub(super) fn read(&self, number: usize) -> Option<Vec<u8>> {
        let mut note = vec![0; NOTE_MAX];
        let read = self.0.read_at(&mut note, (number * NOTE_MAX) as u64);
        read.is_ok_and(|count| count > 0).then_some(note)
    }

    /// Writes it anew.
    pub(super) fn write(&self, number: usize, note: &[u8]) -> io::Result<()> {
        self.0.write_all_at(note, (number * NOTE_MAX) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_kept_until_they_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let [notes, next, other] =
            [(1, 7), (1, 8), (11, 7)].map(|(id, start)| Notes::below(folder.path(), id, start));
        let device = notes.device("disk-0");
        assert!(!device.are_there());
        device.open().unwrap().write(1, b"second").unwrap();
        assert!(device.are_there());
        let notebook = device.open().unwrap();
        assert_eq!(notebook.read(1).unwrap()[..7], *b"second\0");
        assert_eq!(notebook.read(2), None);
        device.forget();
        assert!(!device.are_there());
        other.device("root").open().unwrap();
        next.device("root").open().unwrap();
        next.forget_former();
        assert!(!notes.folder.exists());
        assert!(other.device("root").are_there() && next.device("root").are_there());
        next.forget();
        assert!(!next.folder.exists());
    }
}

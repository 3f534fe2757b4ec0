//! Files that get their name when they are complete.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::fstatvfs;
use tempfile::{Builder, NamedTempFile, PersistError};

/// Suffix of an incomplete file's name.
const SUFFIX: &str = ".partial";

/// Reciprocal of the share of a file system that is kept free.
const RESERVED_SHARE: u64 = 20;

/// A file being written, readable only by its owner. Unless it is persisted, dropping it removes
/// it.
#[derive(Debug)]
pub struct AtomicFile(NamedTempFile);

impl AtomicFile {
    /// Creates a file in that folder, on the file system of its final path. It is locked, so that
    /// [`remove_stale`](Self::remove_stale) leaves it alone.
    ///
    /// # Errors
    /// The file system's error.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let file = Builder::new()
            .suffix(SUFFIX)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)?;
        // Without locks the file may be removed as stale; then it cannot be persisted.
        let _ = file.as_file().try_lock();
        Ok(Self(file))
    }

    /// The file to write to.
    #[must_use]
    pub fn file(&self) -> &File {
        self.0.as_file()
    }

    /// Bytes that can be written before less than the reserved share of the file system is free.
    ///
    /// # Errors
    /// The file system's error.
    pub fn available_bytes(&self) -> io::Result<u64> {
        let found = fstatvfs(self.file())?;
        let blocks = usable_blocks(found.blocks(), found.blocks_available());
        Ok(blocks.saturating_mul(found.fragment_size()))
    }

    /// Gives it its name, if that is free, once all its bytes are on the disk. When this returns,
    /// the name is on the disk as well.
    ///
    /// # Errors
    /// The file system's error, `AlreadyExists` when the name is in use, and the file, to be
    /// persisted under another name.
    pub fn persist_new(self, path: &Path) -> Result<(), (io::Error, Self)> {
        self.name(path, NamedTempFile::persist_noclobber)
    }

    /// Like [`persist_new`](Self::persist_new), but replaces a file of that name.
    ///
    /// # Errors
    /// The file system's error.
    pub fn persist(self, path: &Path) -> io::Result<()> {
        self.name(path, NamedTempFile::persist)
            .map_err(|(error, _)| error)
    }

    fn name(
        self,
        path: &Path,
        persist: impl FnOnce(NamedTempFile, PathBuf) -> Result<File, PersistError>,
    ) -> Result<(), (io::Error, Self)> {
        if let Err(error) = self.file().sync_all() {
            return Err((error, self));
        }
        match persist(self.0, path.to_owned()) {
            Ok(_) => {
                // The file is complete in any case; without this a power failure could remove it.
                let folder = path.parent().and_then(|folder| File::open(folder).ok());
                let _ = folder.map(|folder| folder.sync_all());
                Ok(())
            }
            Err(error) => Err((error.error, Self(error.file))),
        }
    }

    /// Removes what killed commands have left in that folder.
    ///
    /// # Errors
    /// The path, and the file system's error.
    pub fn remove_stale(folder: &Path) -> Result<(), (PathBuf, io::Error)> {
        let entries = match folder.read_dir() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| (folder.to_owned(), error))?,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_partial = path.to_string_lossy().ends_with(SUFFIX);
            if is_partial && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
                fs::remove_file(&path).map_err(|error| (path, error))?;
            }
        }
        Ok(())
    }
}

/// The file system's free blocks beyond the reserved share.
fn usable_blocks(all: u64, free: u64) -> u64 {
    free.saturating_sub(all / RESERVED_SHARE)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_appears_when_complete_and_replaces_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        let write = |bytes: &[u8]| {
            let atomic_file = AtomicFile::create(folder.path()).unwrap();
            atomic_file.file().write_all(bytes).unwrap();
            atomic_file
        };
        let first = write(b"first");
        assert!(!path.exists());
        first.persist_new(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let (error, second) = write(b"second").persist_new(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        second.persist_new(&folder.path().join("other")).unwrap();
        write(b"third").persist(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        drop(write(b"fourth"));
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
    }

    #[test]
    fn a_share_of_the_file_system_is_kept_free() {
        let all = 1000 * RESERVED_SHARE;
        assert_eq!(usable_blocks(all, all), all - 1000);
        assert_eq!(usable_blocks(all, 1001), 1);
        assert_eq!(usable_blocks(all, 999), 0);
    }

    #[test]
    fn stale_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("left.partial");
        fs::write(&left, "bytes").unwrap();
        let atomic_file = AtomicFile::create(folder.path()).unwrap();
        AtomicFile::remove_stale(folder.path()).unwrap();
        assert!(!left.exists());
        atomic_file
            .persist_new(&folder.path().join("kept"))
            .unwrap();
        AtomicFile::remove_stale(&folder.path().join("none")).unwrap();
    }
}

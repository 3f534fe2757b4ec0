//! Files that are whole as soon as they have their name.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::fstatvfs;
use tempfile::{Builder, NamedTempFile, PersistError};

/// What the name of a file in the making ends in.
const ENDING: &str = ".partial";

/// One part in so many of a file system is left free.
const FREE_SHARE: u64 = 20;

/// A file in the making, which only its owner may read. Unless it is kept it goes with this value.
#[derive(Debug)]
pub struct Pending(NamedTempFile);

impl Pending {
    /// Begins a file in that folder, on the file system that it will stay on. It is locked, so that
    /// [`sweep`](Self::sweep) leaves it alone.
    ///
    /// # Errors
    /// What the file system answered.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let file = Builder::new()
            .suffix(ENDING)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)?;
        // Where there are no locks it is swept up at worst, and then cannot be kept.
        let _ = file.as_file().try_lock();
        Ok(Self(file))
    }

    /// The file, to write it.
    #[must_use]
    pub fn file(&self) -> &File {
        self.0.as_file()
    }

    /// Bytes that can be written before less than a share of its file system is free for others.
    ///
    /// # Errors
    /// What the file system answered.
    pub fn room(&self) -> io::Result<u64> {
        let found = fstatvfs(self.file())?;
        let blocks = blocks_for_us(found.blocks(), found.blocks_available());
        Ok(blocks.saturating_mul(found.fragment_size()))
    }

    /// Gives it its name, if that is free, as soon as all its bytes are on the disk. When it returns,
    /// the name is there as well.
    ///
    /// # Errors
    /// What the file system answered, `AlreadyExists` when the name is taken, and the file, to be
    /// kept under another.
    pub fn keep(self, path: &Path) -> Result<(), (io::Error, Self)> {
        self.name(path, NamedTempFile::persist_noclobber)
    }

    /// The same, in the place of a file that has the name.
    ///
    /// # Errors
    /// What the file system answered.
    pub fn replace(self, path: &Path) -> io::Result<()> {
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
                // The file is whole in any case; without this a loss of power may take it whole.
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
    /// The file, and what the file system answered.
    pub fn sweep(folder: &Path) -> Result<(), (PathBuf, io::Error)> {
        let entries = match folder.read_dir() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| (folder.to_owned(), error))?,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_partial = path.to_string_lossy().ends_with(ENDING);
            if is_partial && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
                fs::remove_file(&path).map_err(|error| (path, error))?;
            }
        }
        Ok(())
    }
}

/// Of a file system's free blocks, those that are not left to others.
fn blocks_for_us(all: u64, free: u64) -> u64 {
    free.saturating_sub(all / FREE_SHARE)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_is_there_when_it_is_whole_and_takes_no_others_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        let write = |bytes: &[u8]| {
            let pending = Pending::create(folder.path()).unwrap();
            pending.file().write_all(bytes).unwrap();
            pending
        };
        let first = write(b"first");
        assert!(!path.exists());
        first.keep(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let (error, second) = write(b"second").keep(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        second.keep(&folder.path().join("other")).unwrap();
        write(b"third").replace(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        drop(write(b"fourth"));
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
    }

    #[test]
    fn a_share_of_the_file_system_is_left_to_others() {
        let all = 1000 * FREE_SHARE;
        assert_eq!(blocks_for_us(all, all), all - 1000);
        assert_eq!(blocks_for_us(all, 1001), 1);
        assert_eq!(blocks_for_us(all, 999), 0);
    }

    #[test]
    fn what_nobody_writes_any_more_is_swept_up() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("left.partial");
        fs::write(&left, "bytes").unwrap();
        let pending = Pending::create(folder.path()).unwrap();
        Pending::sweep(folder.path()).unwrap();
        assert!(!left.exists());
        pending.keep(&folder.path().join("kept")).unwrap();
        Pending::sweep(&folder.path().join("none")).unwrap();
    }
}

//! A folder's files. Each is opened below the folder and is a plain file: no name and no link leads out of
//! it, nor to a device.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

use super::CheckpointError;

/// Most files of a folder, and the longest name of one.
const FILES_MAX: usize = 1 << 17;
const NAME_MAX: usize = 128;
/// Link of CRIU's incremental dumps to the folder of the dump before.
const PARENT: &str = "parent";

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    opened: OwnedFd,
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, path, flags, Mode::empty());
        let opened = opened.map_err(|error| failed(".", error))?;
        Ok(Self {
            path: path.to_owned(),
            opened,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of what it has, sorted.
    ///
    /// # Errors
    /// When there is too much of it, or one that no part of a checkpoint has.
    pub(super) fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.opened).map_err(|error| failed(".", error))? {
            let entry = entry.map_err(|error| failed(".", error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match name.as_str() {
                "." | ".." => continue,
                PARENT => return Err(incremental()),
                _ => {}
            }
            if !is_plain(&name) {
                let name = name.escape_debug().to_string();
                return Err(foreign(&name, "no name of CRIU's files"));
            }
            names.push(name);
            if names.len() > FILES_MAX {
                return Err(foreign(".", "a folder with too many files"));
            }
        }
        names.sort();
        Ok(names)
    }

    /// One of its files, and its size in bytes.
    pub(super) fn file(&self, name: &str) -> Result<(File, u64), CheckpointError> {
        // Without `NONBLOCK` opening a pipe would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let opened = match openat2(&self.opened, name, flags, Mode::empty(), resolve) {
            Err(Errno::LOOP | Errno::XDEV) => return Err(foreign(name, "a link")),
            Err(Errno::NOENT) => return Err(CheckpointError::Missing(name.to_owned())),
            Err(Errno::NXIO) => return Err(foreign(name, "not a plain file")),
            opened => opened.map_err(|error| failed(name, error))?,
        };
        let found = fstat(&opened).map_err(|error| failed(name, error))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(foreign(name, "not a plain file"));
        }
        Ok((opened.into(), found.st_size.cast_unsigned()))
    }

    /// The content of a file of at most this many bytes.
    pub(super) fn read(&self, name: &str, max: u64) -> Result<Vec<u8>, CheckpointError> {
        let (file, size) = self.file(name)?;
        let mut content = Vec::new();
        // It may grow meanwhile.
        let read = file.take(max + 1).read_to_end(&mut content);
        read.map_err(|error| failed(name, error))?;
        match size.max(content.len() as u64) > max {
            true => Err(foreign(name, "larger than any such file")),
            false => Ok(content),
        }
    }

    /// Writes a new file, also to the disk.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<(), CheckpointError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let write = || -> io::Result<()> {
            let mut file = File::from(openat(&self.opened, name, flags, mode)?);
            file.write_all(content)?;
            file.sync_all()
        };
        write().map_err(|error| failed(name, error))
    }
}

fn is_plain(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    name.len() <= NAME_MAX && name.bytes().all(allowed)
}

pub(super) fn failed(name: &str, error: impl Into<io::Error>) -> CheckpointError {
    CheckpointError::File {
        name: name.to_owned(),
        source: error.into(),
    }
}

fn foreign(name: &str, what: &'static str) -> CheckpointError {
    CheckpointError::Foreign {
        name: name.to_owned(),
        what,
    }
}

fn incremental() -> CheckpointError {
    CheckpointError::Unsupported(
        "its images are a part only, of an incremental dump: its `parent` has the others"
            .to_owned(),
    )
}

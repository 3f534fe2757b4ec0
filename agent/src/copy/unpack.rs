//! Unpacking files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, futimens,
    mkdirat, openat, openat2, renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::{Copied, CopyMessage, MODE_BITS};
use crate::frame::{FrameError, Reader};

/// The destination of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// An existing folder to put it in, or its new path.
    pub path: &'a Path,
    /// Its name in that folder; `None` for the content of a folder.
    pub name: Option<&'a OsStr>,
}

/// Why unpacking failed. Each file is complete, old or new; of a folder a part may exist.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// A file or folder cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder would replace a file.
    #[error("{} exists and is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// The folder for a file does not exist.
    #[error("the folder {} does not exist", .0.display())]
    NoFolder(PathBuf),
    /// A received path leads out of the target.
    #[error("the received path '{}' leads out of the copied folder, or through a \
             link", .0.escape_debug())]
    OutsideTarget(String),
    /// The messages are in an invalid order.
    #[error("invalid order of messages")]
    InvalidOrder,
    /// The sender failed.
    #[error("{0}")]
    Failed(String),
    /// The connection failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The connection ended too early.
    #[error("the connection ended before all was copied")]
    Truncated,
}

/// Unpacks messages up to the end.
///
/// # Errors
/// [`UnpackError`].
pub fn unpack(reader: &mut Reader<impl Read>, target: &Target<'_>) -> Result<Copied, UnpackError> {
    let mut unpacker = None;
    loop {
        let message = reader.read()?.ok_or(UnpackError::Truncated)?;
        match (&mut unpacker, message) {
            (Some(unpacker), CopyMessage::End(copied)) => {
                Unpacker::finish(unpacker)?;
                return Ok(copied);
            }
            (_, CopyMessage::Failed(reason)) => {
                return Err(UnpackError::Failed(reason.escape_debug().to_string()));
            }
            (Some(unpacker), message) => unpacker.handle(&message)?,
            (none, message) => *none = Some(Unpacker::start(&message, target)?),
        }
    }
}

/// Flags of opening a folder; it is never a terminal or a pipe.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

struct Unpacker {
    /// Path of the top.
    top: PathBuf,
    /// The top, if it is a folder.
    folder: Option<OwnedFd>,
    file: Option<NewFile>,
}

impl Unpacker {
    /// Starts with the first message, which determines the destination.
    fn start(message: &CopyMessage<'_>, target: &Target<'_>) -> Result<Self, UnpackError> {
        match *message {
            CopyMessage::Folder { path: b"", mode } => Self::in_folder(target, mode),
            CopyMessage::File {
                path: b"",
                mode,
                modified_unix_s,
            } => {
                let top = place_of_file(target)?;
                let parent = top.parent().unwrap_or(Path::new("/"));
                let parent = open_folder(parent, OFlags::empty()).map_err(failed(&top))?;
                let file = NewFile::create(parent, &top, mode, modified_unix_s);
                let file = Some(file.map_err(failed(&top))?);
                Ok(Self {
                    top,
                    folder: None,
                    file,
                })
            }
            _ => Err(UnpackError::InvalidOrder),
        }
    }

    fn in_folder(target: &Target<'_>, mode: u32) -> Result<Self, UnpackError> {
        let (top, follow) = match (fs::metadata(target.path), target.name) {
            (Ok(found), _) if !found.is_dir() => {
                return Err(UnpackError::NotAFolder(target.path.to_owned()));
            }
            // The user has not given this name, so it must not be a link.
            (Ok(_), Some(name)) => (target.path.join(name), OFlags::NOFOLLOW),
            _ => (target.path.to_owned(), OFlags::empty()),
        };
        let failed = failed(&top);
        make_folder(CWD, top.as_os_str(), mode).map_err(&failed)?;
        Ok(Self {
            folder: Some(open_folder(&top, follow).map_err(&failed)?),
            top,
            file: None,
        })
    }

    fn handle(&mut self, message: &CopyMessage<'_>) -> Result<(), UnpackError> {
        if let CopyMessage::Bytes(bytes) = *message {
            let file = self.file.as_mut().ok_or(UnpackError::InvalidOrder)?;
            let written = file.file.write_all(bytes);
            return written.map_err(failed(&file.place));
        }
        self.finish()?;
        match *message {
            // It is there.
            CopyMessage::Folder { path: b"", .. } if self.folder.is_some() => Ok(()),
            CopyMessage::Folder { path, mode } => self.create_entry(path, |parent, name| {
                make_folder(parent.as_fd(), name, mode).map(|()| None)
            }),
            CopyMessage::Link { path, target } => self.create_entry(path, |parent, name| {
                link(&parent, name, target).map(|()| None)
            }),
            CopyMessage::File {
                path,
                mode,
                modified_unix_s,
            } => {
                let place = self.top.join(OsStr::from_bytes(path));
                self.create_entry(path, |parent, _| {
                    NewFile::create(parent, &place, mode, modified_unix_s).map(Some)
                })
            }
            CopyMessage::Bytes(_) | CopyMessage::End(_) | CopyMessage::Failed(_) => {
                Err(UnpackError::InvalidOrder)
            }
        }
    }

    /// Creates an entry in the parent folder of `path`.
    fn create_entry(
        &mut self,
        path: &[u8],
        make: impl FnOnce(OwnedFd, &OsStr) -> io::Result<Option<NewFile>>,
    ) -> Result<(), UnpackError> {
        let outside = || UnpackError::OutsideTarget(String::from_utf8_lossy(path).into_owned());
        let folder = self.folder.as_ref().ok_or(UnpackError::InvalidOrder)?;
        let (parent, name) = split(path).ok_or_else(outside)?;
        let failed = failed(&self.top.join(OsStr::from_bytes(path)));
        let parent = match open_below(folder, parent) {
            // Out of the folder, or through a link.
            Err(Errno::XDEV | Errno::LOOP) => return Err(outside()),
            opened => opened.map_err(|errno| failed(errno.into()))?,
        };
        self.file = make(parent, name).map_err(failed)?;
        Ok(())
    }

    /// Completes the current file.
    fn finish(&mut self) -> Result<(), UnpackError> {
        match self.file.take() {
            Some(file) => {
                let failed = failed(&file.place);
                file.finish().map_err(failed)
            }
            None => Ok(()),
        }
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> UnpackError + use<> {
    let path = path.to_owned();
    move |source| UnpackError::Write {
        path: path.clone(),
        source,
    }
}

/// The path of a copied file.
fn place_of_file(target: &Target<'_>) -> Result<PathBuf, UnpackError> {
    let path = target.path;
    let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
    match fs::canonicalize(path) {
        Ok(found) if found.is_dir() => match target.name {
            Some(name) => Ok(found.join(name)),
            None => Err(UnpackError::InvalidOrder),
        },
        Ok(_) if is_folder => Err(UnpackError::NotAFolder(path.to_owned())),
        Ok(found) => Ok(found),
        Err(_) if is_folder => Err(UnpackError::NoFolder(path.to_owned())),
        Err(_) => Ok(path.to_owned()),
    }
}

fn open_folder(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    // The parent of a plain name.
    let path = match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    };
    Ok(openat(CWD, path, FOLDER | flags, Mode::empty())?)
}

/// Opens a folder below another one, by a path without links.
fn open_below(folder: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(folder, path, FOLDER, Mode::empty(), resolve)
}

/// Splits a path into parent and name; `None` if it has no valid name.
fn split(path: &[u8]) -> Option<(&[u8], &OsStr)> {
    let (parent, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b""[..], path),
    };
    let is_name = !matches!(name, b"" | b"." | b"..") && !path.starts_with(b"/");
    is_name.then(|| (parent, OsStr::from_bytes(name)))
}

/// Creates a folder; an existing one keeps its mode.
fn make_folder(parent: impl AsFd, name: &OsStr, mode: u32) -> io::Result<()> {
    match mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => {
            let folder = openat(&parent, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
            Ok(fchmod(folder, Mode::from_raw_mode(mode & MODE_BITS))?)
        }
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A unique temporary name.
fn temporary_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(".insula-cp-{}-{count}", process::id())
}

/// Creates a link, replacing an existing file.
fn link(parent: &OwnedFd, name: &OsStr, target: &[u8]) -> io::Result<()> {
    let temporary = temporary_name();
    let _ = unlinkat(parent, temporary.as_str(), AtFlags::empty());
    symlinkat(target, parent, temporary.as_str())?;
    let renamed = renameat(parent, temporary.as_str(), parent, name);
    renamed.map_err(|error| {
        let _ = unlinkat(parent, temporary.as_str(), AtFlags::empty());
        error.into()
    })
}

/// A file that replaces an existing one when it is complete.
struct NewFile {
    parent: OwnedFd,
    temporary: String,
    /// Its final path.
    place: PathBuf,
    file: File,
    mode: u32,
    modified_unix_s: i64,
}

impl NewFile {
    fn create(parent: OwnedFd, place: &Path, mode: u32, modified_unix_s: i64) -> io::Result<Self> {
        let temporary = temporary_name();
        // Left by a killed process with the same id.
        let _ = unlinkat(&parent, temporary.as_str(), AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&parent, temporary.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self {
            parent,
            temporary,
            place: place.to_owned(),
            file: file.into(),
            mode,
            modified_unix_s,
        })
    }

    fn finish(self) -> io::Result<()> {
        fchmod(&self.file, Mode::from_raw_mode(self.mode & MODE_BITS))?;
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        // Some file systems do not keep times.
        let _ = futimens(
            &self.file,
            &Timestamps {
                last_access: time(0, UTIME_OMIT),
                last_modification: time(self.modified_unix_s, 0),
            },
        );
        let name = self.place.file_name().unwrap_or_default();
        Ok(renameat(
            &self.parent,
            self.temporary.as_str(),
            &self.parent,
            name,
        )?)
    }
}

impl Drop for NewFile {
    /// Removes an incomplete file; a complete one has its final name.
    fn drop(&mut self) {
        let _ = unlinkat(&self.parent, self.temporary.as_str(), AtFlags::empty());
    }
}

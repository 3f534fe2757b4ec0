//! Setting files down.

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

use super::{Copied, MODE_BITS, Parcel};
use crate::frame::{FrameError, Reader};

/// Where a copy is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// A folder to put it in, or its own new path.
    pub path: &'a Path,
    /// What it is called in a folder; none if it is the content of a folder, which goes into this
    /// one.
    pub name: Option<&'a OsStr>,
}

/// Why not all was unpacked. Files are whole, old or new; of a folder some may be there.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// A file or folder cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder was to take the place of a file.
    #[error("{} is there already and is no folder", .0.display())]
    NotAFolder(PathBuf),
    /// A file was to go into a folder that is not there.
    #[error("there is no folder {}", .0.display())]
    NoFolder(PathBuf),
    /// What came has no place in the target.
    #[error("'{}' was sent, which leads out of what is copied, or through a link", .0.escape_debug())]
    Astray(String),
    /// What came is in no order.
    #[error("what came is not in order")]
    Disorder,
    /// Who sent it has given up.
    #[error("{0}")]
    Failed(String),
    /// The connection has failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It has ended too early.
    #[error("the connection has ended before all was copied")]
    Cut,
}

/// Unpacks all that comes, to its end.
///
/// # Errors
/// [`UnpackError`].
pub fn unpack(reader: &mut Reader<impl Read>, target: &Target<'_>) -> Result<Copied, UnpackError> {
    let mut unpacker = None;
    loop {
        let parcel = reader.read()?.ok_or(UnpackError::Cut)?;
        match (&mut unpacker, parcel) {
            (Some(unpacker), Parcel::End(copied)) => {
                Unpacker::finish(unpacker)?;
                return Ok(copied);
            }
            (_, Parcel::Failed(reason)) => {
                return Err(UnpackError::Failed(reason.escape_debug().to_string()));
            }
            (Some(unpacker), parcel) => unpacker.take(&parcel)?,
            (none, parcel) => *none = Some(Unpacker::begin(&parcel, target)?),
        }
    }
}

/// What is opened may be made by whoever sends: it is no terminal of ours, and not waited for.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

struct Unpacker {
    /// Where the user finds the top.
    top: PathBuf,
    /// The top, if it is a folder.
    folder: Option<OwnedFd>,
    file: Option<NewFile>,
}

impl Unpacker {
    /// Begins with the first parcel, which decides where all goes.
    fn begin(parcel: &Parcel<'_>, target: &Target<'_>) -> Result<Self, UnpackError> {
        match *parcel {
            Parcel::Folder { path: b"", mode } => Self::in_folder(target, mode),
            Parcel::File {
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
            _ => Err(UnpackError::Disorder),
        }
    }

    fn in_folder(target: &Target<'_>, mode: u32) -> Result<Self, UnpackError> {
        let (top, follow) = match (fs::metadata(target.path), target.name) {
            (Ok(there), _) if !there.is_dir() => {
                return Err(UnpackError::NotAFolder(target.path.to_owned()));
            }
            // What has that name there the user has not named.
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

    fn take(&mut self, parcel: &Parcel<'_>) -> Result<(), UnpackError> {
        if let Parcel::Bytes(bytes) = *parcel {
            let file = self.file.as_mut().ok_or(UnpackError::Disorder)?;
            let written = file.file.write_all(bytes);
            return written.map_err(failed(&file.place));
        }
        self.finish()?;
        match *parcel {
            Parcel::Folder { path, mode } => self.put(path, |parent, name| {
                make_folder(parent.as_fd(), name, mode).map(|()| None)
            }),
            Parcel::Link { path, target } => self.put(path, |parent, name| {
                link(&parent, name, target).map(|()| None)
            }),
            Parcel::File {
                path,
                mode,
                modified_unix_s,
            } => {
                let place = self.top.join(OsStr::from_bytes(path));
                self.put(path, |parent, _| {
                    NewFile::create(parent, &place, mode, modified_unix_s).map(Some)
                })
            }
            Parcel::Bytes(_) | Parcel::End(_) | Parcel::Failed(_) => Err(UnpackError::Disorder),
        }
    }

    /// Makes something new in the folder in which `path` says it is.
    fn put(
        &mut self,
        path: &[u8],
        make: impl FnOnce(OwnedFd, &OsStr) -> io::Result<Option<NewFile>>,
    ) -> Result<(), UnpackError> {
        let astray = || UnpackError::Astray(String::from_utf8_lossy(path).into_owned());
        let folder = self.folder.as_ref().ok_or(UnpackError::Disorder)?;
        let (parent, name) = split(path).ok_or_else(astray)?;
        let failed = failed(&self.top.join(OsStr::from_bytes(path)));
        let parent = match open_below(folder, parent) {
            // Out of the folder, or through a link.
            Err(Errno::XDEV | Errno::LOOP) => return Err(astray()),
            opened => opened.map_err(|errno| failed(errno.into()))?,
        };
        self.file = make(parent, name).map_err(failed)?;
        Ok(())
    }

    /// What was begun is whole.
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

/// The path that a file gets.
fn place_of_file(target: &Target<'_>) -> Result<PathBuf, UnpackError> {
    let path = target.path;
    let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
    match fs::canonicalize(path) {
        Ok(there) if there.is_dir() => match target.name {
            Some(name) => Ok(there.join(name)),
            None => Err(UnpackError::Disorder),
        },
        Ok(_) if is_folder => Err(UnpackError::NotAFolder(path.to_owned())),
        Ok(there) => Ok(there),
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

/// A folder below another one, by a path without links.
fn open_below(folder: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(folder, path, FOLDER, Mode::empty(), resolve)
}

/// The folder in which something is, and its name there; none if it has none.
fn split(path: &[u8]) -> Option<(&[u8], &OsStr)> {
    let (parent, name) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b""[..], path),
    };
    let is_name = !matches!(name, b"" | b"." | b"..") && !path.starts_with(b"/");
    is_name.then(|| (parent, OsStr::from_bytes(name)))
}

/// One that is there keeps its mode.
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

/// A name that nobody else has in a folder, for what is not whole yet.
fn passing_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(".insula-cp-{}-{count}", process::id())
}

/// A link in the place of whatever file is there.
fn link(parent: &OwnedFd, name: &OsStr, target: &[u8]) -> io::Result<()> {
    let passing = passing_name();
    let _ = unlinkat(parent, passing.as_str(), AtFlags::empty());
    symlinkat(target, parent, passing.as_str())?;
    let renamed = renameat(parent, passing.as_str(), parent, name);
    renamed.map_err(|error| {
        let _ = unlinkat(parent, passing.as_str(), AtFlags::empty());
        error.into()
    })
}

/// A file that takes the place of another one when it is whole.
struct NewFile {
    parent: OwnedFd,
    passing: String,
    /// Where the user finds it when it is whole.
    place: PathBuf,
    file: File,
    mode: u32,
    modified_unix_s: i64,
}

impl NewFile {
    fn create(parent: OwnedFd, place: &Path, mode: u32, modified_unix_s: i64) -> io::Result<Self> {
        let passing = passing_name();
        // Left by a process of this number that was killed.
        let _ = unlinkat(&parent, passing.as_str(), AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&parent, passing.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self {
            parent,
            passing,
            place: place.to_owned(),
            file: file.into(),
            mode,
            modified_unix_s,
        })
    }

    fn finish(self) -> io::Result<()> {
        fchmod(&self.file, Mode::from_raw_mode(self.mode & MODE_BITS))?;
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        // Not every file system keeps every time.
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
            self.passing.as_str(),
            &self.parent,
            name,
        )?)
    }
}

impl Drop for NewFile {
    /// What is not whole goes; what is has another name by now.
    fn drop(&mut self) {
        let _ = unlinkat(&self.parent, self.passing.as_str(), AtFlags::empty());
    }
}

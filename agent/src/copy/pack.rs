//! Packing files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;

use super::{Copied, CopyMessage, MODE_BITS};
use crate::frame::BYTES_MAX;

/// Why packing failed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file or folder cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a device, a pipe or a socket.
    #[error("{} is neither a file nor a folder", .0.display())]
    Kind(PathBuf),
    /// A message could not be sent.
    #[error(transparent)]
    Send(#[from] io::Error),
}

/// Packs a file or a folder with its content and sends each message except the end. A symbolic link
/// is followed if it is `path` itself, but copied within a folder. Devices, pipes and sockets are
/// skipped, as are files removed meanwhile.
///
/// # Errors
/// [`PackError`]; the messages sent are incomplete.
pub fn pack(
    path: &Path,
    send: &mut dyn FnMut(&CopyMessage<'_>) -> io::Result<()>,
) -> Result<Copied, PackError> {
    let failed = failed(path);
    let top = openat(CWD, path, READING, Mode::empty()).map_err(&failed)?;
    let stat = fstat(&top).map_err(&failed)?;
    let mut packer = Packer {
        top: path,
        send,
        copied: Copied::default(),
    };
    match kind(&stat) {
        FileType::Directory => packer.folder(top, &stat, Path::new(""))?,
        FileType::RegularFile => packer.file(top, &stat, Path::new(""))?,
        _ => return Err(PackError::Kind(path.to_owned())),
    }
    Ok(packer.copied)
}

/// The same of the folder `name` in the folder `path`, as the rest of its content was left out.
///
/// # Errors
/// [`PackError`]; the messages sent are incomplete.
pub fn pack_part(
    path: &Path,
    name: &str,
    send: &mut dyn FnMut(&CopyMessage<'_>) -> io::Result<()>,
) -> Result<Copied, PackError> {
    let part = path.join(name);
    let failed = failed(&part);
    let opened = [path, &part].map(|path| -> Result<_, Errno> {
        let folder = openat(CWD, path, READING | OFlags::DIRECTORY, Mode::empty())?;
        let stat = fstat(&folder)?;
        Ok((folder, stat))
    });
    let [top, part] = opened;
    let (top, (folder, stat)) = (top.map_err(&failed)?, part.map_err(&failed)?);
    let mut packer = Packer {
        top: path,
        send,
        copied: Copied::default(),
    };
    packer.announce(&top.1, Path::new(""))?;
    packer.folder(folder, &stat, Path::new(name))?;
    Ok(packer.copied)
}

/// Flags of opening for reading. Without `NONBLOCK` opening a pipe would wait for a writer.
const READING: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn failed<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> PackError + use<E> {
    let path = path.to_owned();
    move |error| PackError::Read {
        path: path.clone(),
        source: error.into(),
    }
}

struct Packer<'a> {
    top: &'a Path,
    send: &'a mut dyn FnMut(&CopyMessage<'_>) -> io::Result<()>,
    copied: Copied,
}

impl Packer<'_> {
    /// The path for users of a path relative to the top.
    fn place(&self, path: &Path) -> PathBuf {
        match path.as_os_str().is_empty() {
            true => self.top.to_owned(),
            false => self.top.join(path),
        }
    }

    /// Sends a folder, whose content follows.
    fn announce(&mut self, stat: &Stat, path: &Path) -> io::Result<()> {
        (self.send)(&CopyMessage::Folder {
            path: path.as_os_str().as_bytes(),
            mode: stat.st_mode & MODE_BITS,
        })
    }

    fn folder(&mut self, folder: OwnedFd, stat: &Stat, path: &Path) -> Result<(), PackError> {
        self.announce(stat, path)?;
        let failed = failed(&self.place(path));
        for entry in Dir::read_from(&folder).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.entry(&folder, &path.join(OsStr::from_bytes(name)))?;
            }
        }
        Ok(())
    }

    /// Opens an entry relative to its folder: the path may lead elsewhere by now.
    fn entry(&mut self, folder: &OwnedFd, path: &Path) -> Result<(), PackError> {
        let failed = failed(&self.place(path));
        let name = path.file_name().unwrap_or_default();
        match openat(folder, name, READING | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(opened) => {
                let stat = fstat(&opened).map_err(&failed)?;
                match kind(&stat) {
                    FileType::Directory => self.folder(opened, &stat, path),
                    FileType::RegularFile => self.file(opened, &stat, path),
                    _ => self.skip(),
                }
            }
            Err(Errno::LOOP) => {
                let target = readlinkat(folder, name, Vec::new()).map_err(&failed)?;
                Ok((self.send)(&CopyMessage::Link {
                    path: path.as_os_str().as_bytes(),
                    target: target.to_bytes(),
                })?)
            }
            // A socket, or a device without a driver.
            Err(Errno::NXIO | Errno::NODEV) => self.skip(),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    fn skip(&mut self) -> Result<(), PackError> {
        self.copied.skipped += 1;
        Ok(())
    }

    /// Sends a file up to its end, regardless of its reported size: it may grow, and files of the
    /// kernel have size 0.
    fn file(
        &mut self,
        file: impl AsFd + Into<File>,
        stat: &Stat,
        path: &Path,
    ) -> Result<(), PackError> {
        (self.send)(&CopyMessage::File {
            path: path.as_os_str().as_bytes(),
            mode: stat.st_mode & MODE_BITS,
            modified_unix_s: stat.st_mtime,
        })?;
        let failed = failed(&self.place(path));
        let (mut file, mut buffer) = (file.into(), vec![0; BYTES_MAX]);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => (self.send)(&CopyMessage::Bytes(&buffer[..count]))?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

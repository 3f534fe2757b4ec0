//! Unpacking.

use std::fs::{self, Permissions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;
use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat,
};
use tar::{Archive, Entry, EntryType, Header};

/// Unpacks to a folder. A name that leads out of it is refused.
pub(super) fn unpack(folder: &Path, input: impl Read) -> io::Result<()> {
    let mut archive = Archive::new(GzDecoder::new(BufReader::new(input)));
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(true);
    let mut folders = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            let made = Attributes::of(&entry, folder)?;
            made.make_folder()?;
            folders.push(made);
        } else if kind.is_fifo() || kind.is_character_special() || kind.is_block_special() {
            Attributes::of(&entry, folder)?.make_node(entry.header())?;
        } else if !entry.unpack_in(folder)? {
            return Err(leads_out(&entry.path()?));
        }
    }
    // Only its end tells whether all of it is right.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    // Not before: what comes into a folder changes its time.
    folders.iter().rev().try_for_each(Attributes::set)
}

/// Where an entry comes to lie, and what it is set to.
struct Attributes {
    path: PathBuf,
    mode: u32,
    owner: (u32, u32),
    modified_unix_s: i64,
}

impl Attributes {
    fn of(entry: &Entry<'_, impl Read>, folder: &Path) -> io::Result<Self> {
        let (name, header) = (entry.path()?, entry.header());
        let id = |id: u64| u32::try_from(id).map_err(io::Error::other);
        Ok(Self {
            path: inside(folder, &name)?,
            mode: header.mode()?,
            owner: (id(header.uid()?)?, id(header.gid()?)?),
            modified_unix_s: i64::try_from(header.mtime()?).map_err(io::Error::other)?,
        })
    }

    fn make_folder(&self) -> io::Result<()> {
        match fs::create_dir(&self.path) {
            // It may be the folder itself; a link is none.
            Err(_) if fs::symlink_metadata(&self.path).is_ok_and(|one| one.is_dir()) => Ok(()),
            made => made,
        }
    }

    fn make_node(&self, header: &Header) -> io::Result<()> {
        let device = || -> io::Result<Dev> {
            let (major, minor) = (header.device_major()?, header.device_minor()?);
            Ok(makedev(major.unwrap_or(0), minor.unwrap_or(0)))
        };
        let (kind, device) = match header.entry_type() {
            EntryType::Char => (FileType::CharacterDevice, device()?),
            EntryType::Block => (FileType::BlockDevice, device()?),
            _ => (FileType::Fifo, 0),
        };
        mknodat(CWD, &self.path, kind, Mode::RUSR | Mode::WUSR, device)?;
        self.set()
    }

    fn set(&self) -> io::Result<()> {
        let (user, group) = self.owner;
        lchown(&self.path, Some(user), Some(group))?;
        fs::set_permissions(&self.path, Permissions::from_mode(self.mode))?;
        let modified = Timespec {
            tv_sec: self.modified_unix_s,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: modified,
            last_modification: modified,
        };
        Ok(utimensat(CWD, &self.path, &times, AtFlags::empty())?)
    }
}

/// The path of a name in a folder, which links in it do not lead out of.
fn inside(folder: &Path, name: &Path) -> io::Result<PathBuf> {
    let mut path = folder.to_owned();
    for component in name.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => {
                if fs::symlink_metadata(&path)?.is_symlink() {
                    return Err(leads_out(name));
                }
                path.push(part);
            }
            _ => return Err(leads_out(name)),
        }
    }
    Ok(path)
}

fn leads_out(name: &Path) -> io::Error {
    io::Error::other(format!("{} leads out of the folder", name.display()))
}

//! Names: making, removing and moving them, and listings.

use nix::errno::Errno;
use nix::libc;

use crate::Request;
use crate::files::attributes::FileType;
use crate::files::content::free_if_unused;
use crate::files::directory;
use crate::files::handler::Files;
use crate::files::names::Paths;
use crate::files::system::{FileSystem, Inode};
use crate::files::walk::End;

/// Most bytes of a listing.
const LIST_MAX: u64 = 64 << 10;

impl<F: FileSystem> Files<F> {
    /// Makes a directory, or a symbolic link to the second path.
    pub(super) fn make(&mut self, request: &Request<'_>, kind: FileType) -> Result<u64, Errno> {
        let is_link = kind == FileType::Link;
        let paths = Paths::read(request, if is_link { 2 } else { 1 })?;
        let place = self.walk(request.words[0], &paths.first, &paths.mount, End::Name)?;
        let (directory, name) = place.free_name(kind)?;
        if is_link && paths.second.is_empty() {
            return Err(Errno::ENOENT);
        }
        let mode = match is_link {
            true => 0o777,
            false => request.words[1] as u32,
        };
        let attributes = self.new_attributes(directory, kind, mode)?;
        let target = &paths.second;
        self.system.create(directory, name, &attributes, target)?;
        Ok(0)
    }

    pub(super) fn unlink(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let wants_directory = request.words[1] as i32 & libc::AT_REMOVEDIR != 0;
        let place = self.place(request, End::Name)?;
        let otherwise = match wants_directory {
            true => Errno::EINVAL,
            false => Errno::EISDIR,
        };
        let (directory, name) = place.named(otherwise)?;
        let inode = place.inode()?;
        let is_directory = self.system.attributes(inode)?.kind == FileType::Directory;
        match (wants_directory, is_directory) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (false, false) if place.is_directory => return Err(Errno::ENOTDIR),
            _ => {}
        }
        let counts = self.open.counts();
        self.system.unlink(directory, name)?;
        free_if_unused(&mut self.system, &counts, inode)?;
        Ok(0)
    }

    pub(super) fn rename(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let [handle, second, flags, ..] = request.words;
        let flags = flags as u32;
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        let paths = Paths::read(request, 2)?;
        let from = self.walk(handle, &paths.first, &paths.mount, End::Name)?;
        let to = self.walk(second, &paths.second, &paths.mount, End::Name)?;
        let is_new_only = flags & libc::RENAME_NOREPLACE != 0;
        let source = from.named(Errno::EBUSY)?;
        let target = to.named(match is_new_only {
            true => Errno::EEXIST,
            false => Errno::EBUSY,
        })?;
        let inode = from.inode()?;
        let is_directory = self.system.attributes(inode)?.kind == FileType::Directory;
        match to.inode {
            Some(_) if is_new_only => return Err(Errno::EEXIST),
            _ if !is_directory && (from.is_directory || to.is_directory) => {
                return Err(Errno::ENOTDIR);
            }
            _ if is_directory && self.is_within(target.0, inode)? => return Err(Errno::EINVAL),
            Some(other) if self.is_within(source.0, other)? => return Err(Errno::ENOTEMPTY),
            Some(other) if other == inode => return Ok(0),
            Some(other) => self.may_replace(other, is_directory)?,
            None => {}
        }
        let counts = self.open.counts();
        self.system.rename(source, target)?;
        if let Some(other) = to.inode {
            free_if_unused(&mut self.system, &counts, other)?;
        }
        Ok(0)
    }

    /// Fails if a directory is to replace something else, or the other way round.
    pub(super) fn may_replace(&mut self, other: Inode, by_directory: bool) -> Result<(), Errno> {
        let is_directory = self.system.attributes(other)?.kind == FileType::Directory;
        match (by_directory, is_directory) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    /// Whether a directory is another one, or below it.
    pub(super) fn is_within(&mut self, mut directory: Inode, above: Inode) -> Result<bool, Errno> {
        // On a damaged disk, directories may be in a circle.
        for _ in 0..=self.system.statistics()?.inodes {
            let parent = self.system.parent(directory)?;
            match directory {
                found if found == above => return Ok(true),
                root if root == parent => return Ok(false),
                _ => directory = parent,
            }
        }
        Err(Errno::EUCLEAN)
    }

    pub(super) fn link(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let [handle, second, flags, ..] = request.words;
        let paths = Paths::read(request, 2)?;
        let follows = flags as i32 & libc::AT_SYMLINK_FOLLOW != 0;
        let inode = self
            .walk(handle, &paths.first, &paths.mount, End::following(follows))?
            .inode()?;
        let place = self.walk(second, &paths.second, &paths.mount, End::Name)?;
        let (directory, name) = place.free_name(FileType::File)?;
        if self.system.attributes(inode)?.kind == FileType::Directory {
            return Err(Errno::EPERM);
        }
        self.system.link(inode, directory, name)?;
        Ok(0)
    }

    pub(super) fn read_link(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let inode = self.place(request, End::NoFollow)?.inode()?;
        if self.system.attributes(inode)?.kind != FileType::Link {
            return Err(Errno::EINVAL);
        }
        self.data = self.system.target(inode)?;
        self.data.truncate(request.writable as usize);
        Ok(self.data.len() as u64)
    }

    pub(super) fn list(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        let description = self.open.find(request.words[0])?;
        description.may_read()?;
        if self.system.attributes(description.inode)?.kind != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let room = request.writable.min(LIST_MAX) as usize;
        let (inode, after) = (description.inode, description.offset);
        let last = directory::list(&mut self.system, inode, after, room, &mut self.data)?;
        self.open.set_offset(request.words[0], last)?;
        Ok(self.data.len() as u64)
    }
}

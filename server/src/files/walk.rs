//! Walks of paths.

use std::collections::VecDeque;

use nix::errno::Errno;

use crate::files::attributes::{FileType, NAME_MAX};
use crate::files::system::{FileSystem, Inode};

/// Most symbolic links of a walk (path_resolution(7)).
const LINKS_MAX: u32 = 40;
/// `PATH_MAX`.
const PATH_MAX: usize = 4096;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The directory that has the last name, or is meant itself.
    pub(super) directory: Inode,
    /// The last name; empty if the path ends in none (`.`, `..`, or nothing at all).
    pub(super) name: Vec<u8>,
    /// What it names; `None` if nothing.
    pub(super) inode: Option<Inode>,
    /// The path ends in a slash: it can only mean a directory.
    pub(super) is_directory: bool,
}

impl Place {
    /// Returns what the path names.
    pub(super) fn inode(&self) -> Result<Inode, Errno> {
        self.inode.ok_or(Errno::ENOENT)
    }

    /// Returns the last name, for operations that need one.
    ///
    /// # Errors
    /// `otherwise`, if the path ends in none.
    pub(super) fn named(&self, otherwise: Errno) -> Result<(Inode, &[u8]), Errno> {
        match self.name.is_empty() {
            true => Err(otherwise),
            false => Ok((self.directory, &self.name)),
        }
    }

    /// Returns the place of a new name.
    ///
    /// # Errors
    /// [`Errno::EEXIST`] if something has it; [`Errno::ENOENT`] if only a directory could.
    pub(super) fn free_name(&self, kind: FileType) -> Result<(Inode, &[u8]), Errno> {
        match self.inode {
            Some(_) => Err(Errno::EEXIST),
            None if self.is_directory && kind != FileType::Directory => Err(Errno::ENOENT),
            None => self.named(Errno::EEXIST),
        }
    }
}

/// What the end of a path means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// What a symbolic link there leads to.
    Follow,
    /// The link itself, unless a slash follows.
    NoFollow,
    /// The name in its directory.
    Name,
    /// A file that may be created, followed or not: no slash may follow.
    Create(bool),
}

impl End {
    /// By whether symbolic links are followed.
    pub(super) fn following(follows: bool) -> Self {
        match follows {
            true => Self::Follow,
            false => Self::NoFollow,
        }
    }
}

/// Walks a path from a directory.
///
/// # Errors
/// As of path_resolution(7); [`Errno::EXDEV`] if it leaves the mount.
pub(super) fn walk(
    system: &mut impl FileSystem,
    start: Inode,
    path: &[u8],
    mount: &[u8],
    end: End,
) -> Result<Place, Errno> {
    if path.len() >= PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    let mut walk = Walk {
        at: start,
        left: VecDeque::new(),
        links: 0,
        ends_in_slash: false,
    };
    walk.push(path);
    loop {
        let Some(name) = walk.left.pop_front() else {
            return Ok(walk.here());
        };
        match &*name {
            b"." => walk.is_directory(system)?,
            b".." if walk.at == system.root() => return Err(Errno::EXDEV),
            b".." => walk.at = system.parent(walk.at)?,
            name if name.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG),
            name => {
                if let Some(place) = walk.step(system, name, mount, end)? {
                    return Ok(place);
                }
            }
        }
    }
}

/// A walk under way.
struct Walk {
    at: Inode,
    left: VecDeque<Vec<u8>>,
    links: u32,
    ends_in_slash: bool,
}

impl Walk {
    /// Puts a path in front of what is left.
    fn push(&mut self, path: &[u8]) {
        if self.left.is_empty() {
            self.ends_in_slash |= path.ends_with(b"/");
        }
        let names = path.split(|byte| *byte == b'/');
        let names = names.filter(|name| !name.is_empty());
        for name in names.rev() {
            self.left.push_front(name.to_vec());
        }
    }

    fn here(&self) -> Place {
        Place {
            directory: self.at,
            name: Vec::new(),
            inode: Some(self.at),
            is_directory: self.ends_in_slash,
        }
    }

    fn is_directory(&self, system: &mut impl FileSystem) -> Result<(), Errno> {
        match system.attributes(self.at)?.kind {
            FileType::Directory => Ok(()),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Goes to a name. Returns the place if it is the last one.
    fn step(
        &mut self,
        system: &mut impl FileSystem,
        name: &[u8],
        mount: &[u8],
        end: End,
    ) -> Result<Option<Place>, Errno> {
        let is_last = self.left.is_empty();
        let found = match system.lookup(self.at, name) {
            Ok(inode) => Some(inode),
            Err(Errno::ENOENT) if is_last => None,
            Err(error) => return Err(error),
        };
        let kind = match found {
            Some(inode) => Some(system.attributes(inode)?.kind),
            None => None,
        };
        let follows = match end {
            End::Create(_) if is_last && self.ends_in_slash => return Err(Errno::EISDIR),
            End::Create(follows) => follows,
            End::Follow => true,
            End::NoFollow => self.ends_in_slash,
            End::Name => false,
        };
        match (found, kind) {
            (Some(link), Some(FileType::Link)) if !is_last || follows => {
                self.follow(system, link, mount)?;
                Ok(None)
            }
            (Some(inode), _) if !is_last => {
                self.at = inode;
                Ok(None)
            }
            (inode, kind) => {
                let is_wrong = kind.is_some_and(|kind| kind != FileType::Directory);
                if self.ends_in_slash && is_wrong && end != End::Name {
                    return Err(Errno::ENOTDIR);
                }
                Ok(Some(Place {
                    directory: self.at,
                    name: name.to_vec(),
                    inode,
                    is_directory: self.ends_in_slash,
                }))
            }
        }
    }

    /// Has the target of a link be what is left first.
    fn follow(
        &mut self,
        system: &mut impl FileSystem,
        link: Inode,
        mount: &[u8],
    ) -> Result<(), Errno> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::ELOOP);
        }
        let target = system.target(link)?;
        match target.strip_prefix(b"/") {
            None => self.push(&target),
            Some(_) => {
                let below = target.strip_prefix(mount).ok_or(Errno::EXDEV)?;
                if !below.is_empty() && below[0] != b'/' {
                    return Err(Errno::EXDEV);
                }
                self.at = system.root();
                self.push(below);
            }
        }
        Ok(())
    }
}

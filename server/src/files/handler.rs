//! The requests of the kernel, one function for each.

use insula_abi::files::{NONE, operation};
use nix::errno::Errno;
use nix::libc;

use crate::files::attributes::{Attributes, FileType, PERMISSIONS};
use crate::files::mapped::MappedFiles;
use crate::files::names::Paths;
use crate::files::open_files::OpenFiles;
use crate::files::reply;
use crate::files::system::{FileSystem, Inode};
use crate::files::walk::{End, Place, walk};
use crate::{Announcement, Handler, Reply, Request};

/// A file server: a file system, and who has which of its files open.
#[derive(Debug)]
pub struct Files<F> {
    pub(super) system: F,
    pub(super) open: OpenFiles,
    /// What the client gets with the reply.
    pub(super) data: Vec<u8>,
    announcements: Vec<Announcement>,
    pub(super) mapped: MappedFiles,
    /// The kernel reads no page by itself.
    pub(super) is_copied: bool,
}

impl<F: FileSystem> Files<F> {
    /// Serves a file system.
    pub fn new(system: F) -> Self {
        Self::with(system, OpenFiles::of_one_thread())
    }

    /// Serves a file system of which others serve parts.
    pub(super) fn with(system: F, open: OpenFiles) -> Self {
        Self {
            system,
            open,
            data: Vec::new(),
            announcements: Vec::new(),
            mapped: MappedFiles::default(),
            is_copied: false,
        }
    }

    /// Has all be copied that is read, if `is_copied`: the kernel reads no page by itself.
    #[must_use]
    pub fn copied(self, is_copied: bool) -> Self {
        Self { is_copied, ..self }
    }

    /// Returns the file system.
    pub fn system(&mut self) -> &mut F {
        &mut self.system
    }

    /// Returns the file system, when it is served no longer.
    pub fn into_system(self) -> F {
        self.system
    }

    /// Answers a request, while files may be mapped.
    fn result_beside_mappings(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        use operation::{ALLOCATE, MAP, MSYNC, OPEN, STAT, STATX, SYNC, TRUNCATE, UNMAP, WRITE};
        if self.mapped.is_empty() {
            return self.result(request);
        }
        let operation = request.operation;
        let changes = matches!(operation, WRITE | TRUNCATE | ALLOCATE | OPEN | MAP | UNMAP);
        if changes || matches!(operation, STAT | STATX | SYNC | MSYNC) {
            self.note_stores();
        }
        let result = self.result(request);
        if changes {
            self.show_grown();
            self.note_content();
        }
        result
    }

    fn result(&mut self, request: &Request<'_>) -> Result<u64, Errno> {
        match request.operation {
            operation::OPEN => self.open(request),
            operation::RELEASE => self.release(request.words[0]),
            operation::READ => self.read(request),
            operation::WRITE => self.write(request),
            operation::SEEK => self.seek(request.words),
            operation::STAT | operation::STATX => self.stat(request),
            operation::ACCESS => self.access(request),
            operation::MKDIR => self.make(request, FileType::Directory),
            operation::SYMLINK => self.make(request, FileType::Link),
            operation::UNLINK => self.unlink(request),
            operation::RENAME => self.rename(request),
            operation::LINK => self.link(request),
            operation::READLINK => self.read_link(request),
            operation::CHMOD | operation::CHOWN | operation::UTIMES | operation::TRUNCATE => {
                self.change(request)
            }
            operation::ALLOCATE => self.allocate(request.words),
            operation::SYNC => self.sync(request.words),
            operation::READDIR => self.list(request),
            operation::STATFS => self.statistics(request),
            operation::FLAGS => self.flags(request.words),
            operation::SIZE => self.size(request.words[0]),
            operation::MAP => self.map(request.words),
            operation::UNMAP => self.unmap(request.words[0]),
            operation::MSYNC => self.sync_mapping(request.words[0]),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Returns the directory from which the paths of a handle start.
    pub(super) fn start(&mut self, handle: u64) -> Result<Inode, Errno> {
        match handle {
            NONE => Ok(self.system.root()),
            handle => self.open.inode_of(handle),
        }
    }

    /// Walks the first path of a request.
    pub(super) fn place(&mut self, request: &Request<'_>, end: End) -> Result<Place, Errno> {
        let paths = Paths::read(request, 1)?;
        self.walk(request.words[0], &paths.first, &paths.mount, end)
    }

    /// Returns the attributes of what is made in a directory: of its group, if it says so.
    pub(super) fn new_attributes(
        &mut self,
        directory: Inode,
        kind: FileType,
        mode: u32,
    ) -> Result<Attributes, Errno> {
        let of = self.system.attributes(directory)?;
        let is_of_group = of.permissions & libc::S_ISGID != 0;
        let inherited = match is_of_group && kind == FileType::Directory {
            true => libc::S_ISGID,
            false => 0,
        };
        Ok(Attributes {
            kind,
            permissions: mode & PERMISSIONS | inherited,
            group: if is_of_group { of.group } else { 0 },
            ..Attributes::default()
        })
    }

    pub(super) fn walk(
        &mut self,
        handle: u64,
        path: &[u8],
        mount: &[u8],
        end: End,
    ) -> Result<Place, Errno> {
        let start = self.start(handle)?;
        walk(&mut self.system, start, path, mount, end)
    }
}

impl<F: FileSystem> Handler for Files<F> {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        self.data.clear();
        let result = self.result_beside_mappings(request);
        if result.is_err() {
            self.data.clear();
        }
        let mut words = reply::words(result);
        match (request.operation, result) {
            (operation::OPEN, Ok(shard)) => {
                let (mode, inode) = self.identity(request.words[3]);
                words = [0, mode, inode, shard, 0, 0];
            }
            (operation::READ | operation::WRITE | operation::SEEK, _) => {
                words[1] = self.open.offset(request.words[0]).unwrap_or(0);
            }
            _ => {}
        }
        self.announcements = self.system.take_announcements();
        Reply {
            words,
            data: &self.data,
            announcements: &self.announcements,
        }
    }
}

impl<F: FileSystem> Files<F> {
    /// Returns `st_mode` and `st_ino` of an open file.
    fn identity(&mut self, handle: u64) -> (u64, u64) {
        let Ok(inode) = self.open.inode_of(handle) else {
            return (0, 0);
        };
        let attributes = self.system.attributes(inode);
        let mode = attributes.map_or(0, |of| u64::from(of.kind.mode() | of.permissions));
        (mode, inode)
    }

    fn size(&mut self, handle: u64) -> Result<u64, Errno> {
        let inode = self.open.find(handle)?.inode;
        Ok(self.system.attributes(inode)?.size)
    }
}

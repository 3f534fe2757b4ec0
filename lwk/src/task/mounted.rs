//! Files and sockets of servers in a process: where servers are mounted, and which descriptors are
//! theirs.
//!
//! A descriptor of such a file or socket is a placeholder in the proxy, so numbers, dup(2), fork(2) and poll(2)
//! are the base's. This kernel knows which descriptions of which server are behind it. The last
//! descriptor that goes releases its description.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_abi::files::{CURRENT, SHARDS_MAX, operation};
use insula_abi::server::ENDPOINT_NAME_MAX;

use crate::model::endpoint::{Request, Windows};
use crate::model::errno::Errno;
use crate::model::file_locks::{Kind, Owner};
use crate::model::mounts;
use crate::task::endpoint::Handle;
use crate::task::endpoint_registry::{self, Name};
use crate::task::epoll::Epoll;
use crate::task::file_locks::{self, FileId};
use crate::task::file_offset::{self, SharedOffset};
use crate::task::page_cache::{self, FileReference};
use crate::task::process::Process;
use crate::task::server_handle;
use crate::task::socket::Socket;

/// A mounted server.
#[derive(Debug)]
pub(crate) struct Mount {
    /// Where.
    pub(crate) point: Vec<u8>,
    /// Its endpoint.
    pub(crate) endpoint: Handle,
    /// Name of that.
    server: Name,
}

impl Mount {
    /// Mounts the server of a name, which may not run yet.
    pub(crate) fn new(point: Vec<u8>, server: Name) -> Self {
        Self {
            point,
            endpoint: endpoint_registry::by_name(server.clone()),
            server,
        }
    }

    /// Returns the endpoint of a shard of the server, by its number; none if there can be no such one: a server that
    /// names ever others does not fill this kernel's memory.
    fn shard(&self, number: u64) -> Option<Handle> {
        if number > SHARDS_MAX {
            return None;
        }
        let name = format!(".{number}");
        let name = [&self.server, name.as_bytes()].concat();
        (name.len() <= ENDPOINT_NAME_MAX).then(|| endpoint_registry::by_name(name))
    }
}

/// An open file description of a server.
#[derive(Debug)]
pub(crate) struct Description {
    /// Where it is.
    pub(crate) mount: Arc<Mount>,
    /// By which the server knows it. None is ever used twice.
    pub(crate) handle: u64,
    /// Path by which it was opened.
    pub(crate) path: Vec<u8>,
    /// Flags of open(2).
    flags: u64,
    /// The file's number, once it is open.
    inode: AtomicU64,
    /// The shard of the server that has it, if one does.
    shard: spin::Once<Handle>,
    /// Its content, if it is a regular file that is open for more than its place.
    content: spin::Once<OpenContent>,
}

/// The content of an open file.
#[derive(Debug)]
pub(crate) struct OpenContent {
    /// Where the next read begins.
    pub(crate) offset: SharedOffset,
    /// What this kernel has of it; none without memory for that.
    cached: Option<FileReference>,
}

impl OpenContent {
    /// Reads what this kernel has, to memory of a process: from an offset on, or from the current one, which then
    /// advances. Returns the number of bytes; `None` if the server has to be asked.
    pub(crate) fn read(&self, offset: u64, to: (&Process, &Windows)) -> Option<u64> {
        let file = self.cached.as_ref()?;
        if offset != CURRENT {
            return file.read(offset, to);
        }
        let mut current = file_offset::lock(&self.offset);
        let start = current.known()?;
        let done = file.read(start, to)?;
        current.set(start + done);
        Some(done)
    }

    /// Returns what this kernel has of it; none without memory for that.
    pub(crate) fn cached(&self) -> Option<&FileReference> {
        self.cached.as_ref()
    }

    /// Moves the offset (lseek(2)). Returns it; `None` if the server has to be asked.
    pub(crate) fn seek(&self, by: u64, whence: u64) -> Option<u64> {
        /// `SEEK_SET`, `SEEK_CUR`, `SEEK_END`.
        const START: u64 = 0;
        const HERE: u64 = 1;
        const END: u64 = 2;
        let mut current = file_offset::lock(&self.offset);
        let known = current.known()?;
        let base = match whence {
            START => 0,
            HERE => known,
            END => self.cached.as_ref()?.size()?,
            _ => return None,
        };
        let to = base.cast_signed().checked_add(by.cast_signed())?;
        let to = u64::try_from(to).ok()?;
        current.set(to);
        Some(to)
    }
}

impl Description {
    /// Creates one that the server does not know yet.
    pub(crate) fn new(mount: &Arc<Mount>, path: Vec<u8>, flags: u64) -> Arc<Self> {
        Arc::new(Self {
            mount: Arc::clone(mount),
            handle: server_handle::next(),
            path,
            flags,
            inode: AtomicU64::new(0),
            shard: spin::Once::new(),
            content: spin::Once::new(),
        })
    }

    /// Notes which file it is of, of which mode, and the number of the server's shard that has it; 0 for none.
    ///
    /// # Errors
    /// [`Errno::EIO`] if there can be no such shard.
    pub(crate) fn set_file(&self, mode: u64, inode: u64, shard: u64) -> Result<(), Errno> {
        /// `S_IFMT`, `S_IFREG`.
        const TYPE: u64 = 0o170_000;
        const REGULAR: u64 = 0o100_000;
        self.inode.store(inode, Ordering::Relaxed);
        if shard != 0 {
            let shard = self.mount.shard(shard).ok_or(Errno::EIO)?;
            self.shard.call_once(|| shard);
        }
        if mode & TYPE == REGULAR && !self.is_place() {
            self.content.call_once(|| OpenContent {
                offset: SharedOffset::default(),
                cached: page_cache::open(self.endpoint(), inode),
            });
        }
        Ok(())
    }

    /// Returns its content, if it is a regular file that is open for more than its place.
    pub(crate) fn content(&self) -> Option<&OpenContent> {
        self.content.get()
    }

    /// Returns the endpoint at which it is asked for.
    pub(crate) fn endpoint(&self) -> &Handle {
        self.shard.get().unwrap_or(&self.mount.endpoint)
    }

    /// Returns which file it is of.
    pub(crate) fn id(&self) -> FileId {
        (self.mount.endpoint.id(), self.inode.load(Ordering::Relaxed))
    }

    /// Whether it only stands for the file's place (`O_PATH`).
    pub(crate) fn is_place(&self) -> bool {
        const PLACE: u64 = 0o10_000_000;
        self.flags & PLACE != 0
    }

    /// Whether it is open for what a lock of a range is for (fcntl(2)).
    pub(crate) fn allows(&self, kind: Kind) -> bool {
        /// `O_ACCMODE`, `O_RDONLY`, `O_WRONLY`, `O_RDWR`.
        const ACCESS: u64 = 3;
        const READ: u64 = 0;
        const WRITE: u64 = 1;
        const BOTH: u64 = 2;
        matches!(
            (kind, self.flags & ACCESS),
            (_, BOTH) | (Kind::Shared, READ) | (Kind::Exclusive, WRITE)
        )
    }
}

impl Drop for Description {
    /// Releases it, and its locks. A server that does not know it ignores that.
    fn drop(&mut self) {
        file_locks::release(self.id(), Owner::Description(self.handle));
        let words = [self.handle, 0, 0, 0, 0, 0];
        let request = Request::unanswered(operation::RELEASE, words);
        self.endpoint().post(Box::new(request));
    }
}

/// What is open.
#[derive(Clone, Debug)]
pub(crate) enum Opened {
    /// A file of a file server.
    File(Arc<Description>),
    /// A socket of a network server.
    Socket(Arc<Socket>),
    /// An epoll instance of a process that has a network server.
    Epoll(Arc<Epoll>),
}

/// A descriptor.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    /// What it is of.
    pub(crate) opened: Opened,
    /// execve(2) closes it.
    pub(crate) closes_on_exec: bool,
}

/// The servers' files of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountedFiles {
    mounts: Vec<Arc<Mount>>,
    files: BTreeMap<u32, OpenFile>,
    /// The current directory, if it is a server's.
    pub(crate) directory: Option<Arc<Description>>,
    /// Permissions that new files do not get (umask(2)).
    pub(crate) umask: u64,
    /// The network server, if there is one.
    pub(crate) network: Option<Handle>,
}

impl MountedFiles {
    /// Mounts a server, above what is mounted there.
    pub(crate) fn mount(&mut self, mount: Mount) {
        self.mounts.insert(0, Arc::new(mount));
    }

    /// Finds the mount of an absolute path, and the path below it.
    pub(crate) fn find(&self, path: &[u8]) -> Option<(Arc<Mount>, Vec<u8>)> {
        let normal = mounts::normalized(path);
        let below = |mount: &&Arc<Mount>| mounts::below(&mount.point, &normal).is_some();
        let longest = self.mounts.iter().filter(below).rev();
        let mount = longest.max_by_key(|mount| mount.point.len())?;
        let rest = mounts::below(&mount.point, &normal);
        Some((Arc::clone(mount), rest?.to_vec()))
    }

    /// Returns what a descriptor is of.
    pub(crate) fn opened(&self, fd: u64) -> Option<&Opened> {
        self.files.get(&(fd as u32)).map(|file| &file.opened)
    }

    /// Returns the file of a file server that a descriptor is of.
    pub(crate) fn file(&self, fd: u64) -> Option<Arc<Description>> {
        match self.opened(fd)? {
            Opened::File(file) => Some(Arc::clone(file)),
            Opened::Socket(_) | Opened::Epoll(_) => None,
        }
    }

    /// Returns the socket of a network server that a descriptor is of.
    pub(crate) fn socket(&self, fd: u64) -> Option<Arc<Socket>> {
        match self.opened(fd)? {
            Opened::Socket(socket) => Some(Arc::clone(socket)),
            Opened::File(_) | Opened::Epoll(_) => None,
        }
    }

    /// Returns the epoll instance that a descriptor is of.
    pub(crate) fn epoll(&self, fd: u64) -> Option<Arc<Epoll>> {
        match self.opened(fd)? {
            Opened::Epoll(epoll) => Some(Arc::clone(epoll)),
            Opened::File(_) | Opened::Socket(_) => None,
        }
    }

    /// Whether any descriptor is of a file.
    pub(crate) fn is_any_of(&self, file: FileId) -> bool {
        let mut files = self.files.values();
        files.any(|open| matches!(&open.opened, Opened::File(of) if of.id() == file))
    }

    /// Returns it to change it.
    pub(crate) fn file_mut(&mut self, fd: u64) -> Option<&mut OpenFile> {
        self.files.get_mut(&(fd as u32))
    }

    /// Has a descriptor be a server's file.
    #[must_use = "what it was before is to be dropped without the lock"]
    pub(crate) fn insert(&mut self, fd: u64, file: OpenFile) -> Option<OpenFile> {
        self.files.insert(fd as u32, file)
    }

    /// Has a descriptor be the base's.
    #[must_use = "what it was is to be dropped without the lock"]
    pub(crate) fn remove(&mut self, fd: u64) -> Option<OpenFile> {
        self.files.remove(&(fd as u32))
    }

    /// Has execve(2) close those of a range.
    pub(crate) fn close_range_on_exec(&mut self, first: u32, last: u32) {
        let files = self.files.range_mut(first..=last);
        files.for_each(|(_, file)| file.closes_on_exec = true);
    }

    /// Removes those of a range.
    #[must_use = "they are to be dropped without the lock"]
    pub(crate) fn remove_range(&mut self, first: u32, last: u32) -> Vec<OpenFile> {
        let removed = self.files.extract_if(first..=last, |_, _| true);
        removed.map(|(_, file)| file).collect()
    }
}

type Files = Arc<spin::Mutex<MountedFiles>>;

/// Of each process that has any, by its number.
static ALL: spin::Mutex<BTreeMap<u64, Files>> = spin::Mutex::new(BTreeMap::new());

/// Returns those of a process.
pub(crate) fn files(process: &Process) -> Option<Files> {
    match process.has_mounts() {
        true => ALL.lock().get(&process.pages().number()).map(Arc::clone),
        false => None,
    }
}

/// Gives a process some.
pub(crate) fn set(process: &Process, files: MountedFiles) {
    let before = ALL
        .lock()
        .insert(process.pages().number(), Arc::new(spin::Mutex::new(files)));
    process.set_mounts();
    drop(before);
}

/// Has a child have its parent's.
pub(super) fn inherit(parent: &Process, child: &Process) {
    if let Some(files) = files(parent) {
        let copy = files.lock().clone();
        set(child, copy);
    }
}

/// Closes what execve(2) closes.
pub(super) fn close_on_exec(process: &Process) {
    let Some(files) = files(process) else {
        return;
    };
    let mut files = files.lock();
    let is_closed = |_: &u32, file: &mut OpenFile| file.closes_on_exec;
    let closed: Vec<_> = files.files.extract_if(.., is_closed).collect();
    drop(files);
    release(process, closed.into_iter().map(|(_, file)| file));
}

/// Drops descriptors that a process has closed, without a lock of its files: with each, all locks that
/// the process has of that file go (fcntl_locking(2)).
pub(crate) fn release(process: &Process, closed: impl IntoIterator<Item = OpenFile>) {
    for file in closed {
        if let Opened::File(of) = &file.opened {
            let owner = Owner::Process(process.pages().number());
            file_locks::release(of.id(), owner);
        }
    }
}

/// Closes everything: the process exits.
pub(super) fn remove(process: &Process) {
    let removed = ALL.lock().remove(&process.pages().number());
    let files = removed.map(|files| core::mem::take(&mut files.lock().files));
    release(process, files.into_iter().flat_map(BTreeMap::into_values));
}

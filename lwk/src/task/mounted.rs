//! Files of servers in a process: where servers are mounted, and which descriptors are theirs.
//!
//! A descriptor of such a file is a placeholder in the proxy, so numbers, dup(2), fork(2) and poll(2)
//! are the base's. This kernel knows which descriptions of which server are behind it. The last
//! descriptor that goes releases its description.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_abi::files::operation;

use crate::model::endpoint::{Request, Windows};
use crate::model::mounts;
use crate::task::endpoint::Handle;
use crate::task::process::Process;

/// A mounted server.
#[derive(Debug)]
pub(crate) struct Mount {
    /// Where.
    pub(crate) point: Vec<u8>,
    /// Its endpoint.
    pub(crate) endpoint: Handle,
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
}

static LAST_HANDLE: AtomicU64 = AtomicU64::new(0);

impl Description {
    /// Creates one that the server does not know yet.
    pub(crate) fn new(mount: &Arc<Mount>, path: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            mount: Arc::clone(mount),
            handle: LAST_HANDLE.fetch_add(1, Ordering::Relaxed) + 1,
            path,
        })
    }
}

impl Drop for Description {
    /// Releases it. A server that does not know it ignores that.
    fn drop(&mut self) {
        self.mount.endpoint.post(Box::new(Request {
            sender: None,
            message: 0,
            operation: operation::RELEASE,
            words: [self.handle, 0, 0, 0, 0, 0],
            head: Vec::new(),
            readable: Windows::default(),
            writable: Windows::default(),
            rank: 0,
            deadline_ns: None,
        }));
    }
}

/// A descriptor.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    /// What it is of.
    pub(crate) description: Arc<Description>,
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

    /// Returns a descriptor.
    pub(crate) fn file(&self, fd: u64) -> Option<&OpenFile> {
        self.files.get(&(fd as u32))
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
    drop(closed);
}

/// Closes everything: the process exits.
pub(super) fn remove(process: &Process) {
    let removed = ALL.lock().remove(&process.pages().number());
    drop(removed);
}

//! Which server a path leads to.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::model::errno::Errno;
use crate::task::mounted::{Description, Mount, MountedFiles};
use crate::task::thread::Thread;

/// `PATH_MAX`.
const PATH_MAX: usize = 4096;
/// `AT_FDCWD`: as a descriptor.
pub(super) const AT_FDCWD: u64 = -100_i32 as u32 as u64;

/// A path below a mount point.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The mounted server.
    pub(super) mount: Arc<Mount>,
    /// Directory from which the path starts; none for the mount point.
    pub(super) directory: Option<Arc<Description>>,
    /// The path.
    pub(super) path: Vec<u8>,
}

impl Target {
    /// Returns the path from the root, as far as it is known.
    pub(super) fn full_path(&self) -> Vec<u8> {
        let from = match &self.directory {
            Some(directory) => &directory.path,
            None => &self.mount.point,
        };
        [from, &b"/"[..], &self.path].concat()
    }
}

/// Where a path leads.
pub(super) enum Place {
    /// To a server.
    Server(Target),
    /// To the base.
    Base,
}

/// Finds where a path leads, from a directory's descriptor.
///
/// # Errors
/// [`Errno::ENOENT`] for an empty path from a server's directory.
pub(super) fn find(files: &MountedFiles, directory: u64, path: Vec<u8>) -> Result<Place, Errno> {
    let directory = match u64::from(directory as u32) {
        AT_FDCWD => files.directory.clone(),
        fd => files.file(fd),
    };
    let is_absolute = path.starts_with(b"/");
    Ok(match (is_absolute, directory) {
        (true, _) => match files.find(&path) {
            Some((mount, path)) => Place::Server(Target {
                mount,
                directory: None,
                path,
            }),
            None => Place::Base,
        },
        (false, Some(_)) if path.is_empty() => return Err(Errno::ENOENT),
        (false, Some(directory)) => Place::Server(Target {
            mount: Arc::clone(&directory.mount),
            directory: Some(directory),
            path,
        }),
        (false, None) => Place::Base,
    })
}

/// Reads a path of a program. Not with its files locked: who reads memory may wait for a core that waits
/// for that lock.
///
/// # Errors
/// [`Errno::EFAULT`], [`Errno::ENAMETOOLONG`].
pub(super) fn read(thread: &Thread, address: u64) -> Result<Vec<u8>, Errno> {
    let path = thread.process.space().string(address, PATH_MAX - 1);
    path.map_err(|error| match error {
        Errno::E2BIG => Errno::ENAMETOOLONG,
        error => error,
    })
}

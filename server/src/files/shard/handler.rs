//! The requests that a shard answers.

use std::sync::Arc;

use insula_abi::files::{NONE, operation};
use nix::errno::Errno;

use super::{Announcer, SharedSystem};
use crate::files::handler::Files;
use crate::files::reply;
use crate::files::system::FileSystem;
use crate::{Handler, Reply, Request};

/// A part of a file server: what is done with open files whose inodes are its own.
#[derive(Debug)]
pub struct Shard<F> {
    files: Files<SharedSystem<F>>,
}

impl<F: FileSystem> Shard<F> {
    pub(super) fn new(files: Files<SharedSystem<F>>) -> Self {
        Self { files }
    }

    /// Has the kernel read its pages by itself, of which it hears by the announcer.
    pub fn share_pages(&self, announcer: Arc<dyn Announcer>) {
        self.files.system.share_pages(announcer);
    }
}

/// Whether a request is about an open file, and no name. All others are the thread's that has the names: no two may change
/// these at once.
fn is_of_file(request: &Request<'_>) -> bool {
    let by_handle = request.words[0] != NONE;
    match request.operation {
        operation::RELEASE
        | operation::READ
        | operation::WRITE
        | operation::SEEK
        | operation::ALLOCATE
        | operation::SYNC
        | operation::FLAGS
        | operation::SIZE
        | operation::READDIR => true,
        operation::STAT
        | operation::STATX
        | operation::CHMOD
        | operation::CHOWN
        | operation::UTIMES
        | operation::TRUNCATE
        | operation::STATFS => by_handle,
        _ => false,
    }
}

impl<F: FileSystem> Handler for Shard<F> {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        match is_of_file(request) {
            true => self.files.handle(request),
            false => Reply::new(reply::words(Err(Errno::ENOSYS)), &[]),
        }
    }
}

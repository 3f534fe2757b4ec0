//! Asking a file server.

use insula_abi::files::NONE;

pub(super) use crate::syscall::ask::{Ask, Words, result};
use crate::syscall::mounted::target::Target;
use crate::task::endpoint::Handle;
use crate::task::file_offset::OffsetRequest;
use crate::task::mounted::Description;

impl Ask {
    fn of_handle(endpoint: &Handle, operation: u32, handle: u64, more: &[u64]) -> Self {
        let mut words = Words::default();
        words[0] = handle;
        words[1..=more.len()].copy_from_slice(more);
        Self::new(endpoint, operation, words)
    }

    /// About an open file.
    pub(super) fn of_file(file: &Description, operation: u32, more: &[u64]) -> Self {
        Self::of_handle(file.endpoint(), operation, file.handle, more)
    }

    /// About an open file, for an operation that needs its offset: what this kernel knows of that comes last.
    pub(super) fn of_offset_of(file: &Description, operation: u32, more: &[u64]) -> Self {
        let Some(content) = file.content() else {
            return Self::of_file(file, operation, more);
        };
        let (request, told) = OffsetRequest::begin(&content.offset);
        let more = [more, &[told.offset, told.number]].concat();
        Self::of_file(file, operation, &more).of_offset(request)
    }

    /// About an open file, for an operation that has a path: an empty one.
    pub(super) fn of_file_itself(file: &Description, operation: u32, more: &[u64]) -> Self {
        Self::of_file(file, operation, more)
            .path(&file.mount.point)
            .path(b"")
    }

    /// About a path.
    pub(super) fn of_path(target: &Target, operation: u32, more: &[u64]) -> Self {
        let handle = target.directory.as_ref().map_or(NONE, |from| from.handle);
        Self::of_handle(&target.mount.endpoint, operation, handle, more)
            .path(&target.mount.point)
            .path(&target.path)
    }

    /// Adds a path.
    pub(super) fn path(self, path: &[u8]) -> Self {
        self.bytes(path).bytes(&[0])
    }
}

//! The offset of a server's file while requests that need it are under way.

use alloc::sync::Arc;

use crate::hw::cores;
use crate::model::file_offset::{FileOffset, ToldOffset};

/// The offset of an open file description.
pub(crate) type SharedOffset = Arc<spin::Mutex<FileOffset>>;

/// Locks an offset.
pub(crate) fn lock(offset: &SharedOffset) -> spin::MutexGuard<'_, FileOffset> {
    cores::wait_for(|| offset.try_lock())
}

/// A request that needs an offset and is under way.
#[derive(Debug)]
pub(crate) struct OffsetRequest {
    offset: SharedOffset,
    /// What the reply has said.
    reply: Option<u64>,
}

impl OffsetRequest {
    /// Begins one. Returns what it is to tell the server, too.
    pub(crate) fn begin(offset: &SharedOffset) -> (Self, ToldOffset) {
        let told = lock(offset).begin();
        let request = Self {
            offset: Arc::clone(offset),
            reply: None,
        };
        (request, told)
    }

    /// Ends it by a reply.
    pub(crate) fn end(mut self, offset: u64) {
        self.reply = Some(offset);
    }
}

impl Drop for OffsetRequest {
    /// Ends it, if it has had no reply.
    fn drop(&mut self) {
        lock(&self.offset).end(self.reply);
    }
}

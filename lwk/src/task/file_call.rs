//! What a thread does when a file server, or a network server, has replied.

use alloc::boxed::Box;
use core::fmt;

use insula_abi::server::MESSAGE_WORDS;

use crate::task::file_offset::OffsetRequest;

/// What follows a reply, with its words: a function of the layer that has made the call, of the type
/// that it knows.
type Then = Box<dyn core::any::Any + Send>;

/// A call of a thread to a server, which this kernel makes for it.
pub struct FileCall {
    /// What follows; none if the first word is the call's result.
    pub then: Option<Then>,
    /// Handle of the socket that it is about, of a network server.
    pub socket: Option<u64>,
    /// The offset that it needs, of a file server's file.
    pub(crate) offset: Option<OffsetRequest>,
    /// The reply, when it is there.
    pub reply: Option<[u64; MESSAGE_WORDS]>,
}

impl fmt::Debug for FileCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileCall")
            .field("reply", &self.reply)
            .finish_non_exhaustive()
    }
}

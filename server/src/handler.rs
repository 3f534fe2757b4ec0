//! What a server does with a request.

use std::fmt;

use crate::{Error, Words};

/// A server's answers.
pub trait Handler {
    /// Handles a request. The client goes on when this returns, with the reply.
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a>;
}

/// A reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Words for the client.
    pub words: Words,
    /// Bytes that are copied to the start of what may be written, as far as they fit: 1 MiB at most.
    pub data: &'a [u8],
    /// What is announced to the kernel before the client goes on.
    pub announcements: &'a [Announcement],
}

impl<'a> Reply<'a> {
    /// Creates a reply.
    #[must_use]
    pub fn new(words: Words, data: &'a [u8]) -> Self {
        Self {
            words,
            data,
            announcements: &[],
        }
    }
}

/// What a server announces to the kernel, beside its replies: words as the protocol between them has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement(pub Words);

/// Access to the two parts of a client's memory that a request names.
pub trait Access {
    /// Copies from the part that may be read, from an offset in it on. Returns the number of bytes: less
    /// than asked for at its end, and 1 MiB at most.
    ///
    /// # Errors
    /// [`Error::ClientGone`]; others if the client has named what is not its memory.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize, Error>;

    /// Copies to the part that may be written, from an offset in it on. Returns the number of bytes,
    /// likewise.
    ///
    /// # Errors
    /// As of [`Access::read`].
    fn write(&self, offset: u64, from: &[u8]) -> Result<usize, Error>;
}

/// A request.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// What is asked for.
    pub operation: u32,
    /// Process id of the client.
    pub sender: u32,
    /// Its words.
    pub words: Words,
    /// The first bytes of what may be read.
    pub first: &'a [u8],
    /// Bytes that may be read.
    pub readable: u64,
    /// Bytes that may be written.
    pub writable: u64,
    pub(crate) access: &'a dyn Access,
}

impl Request<'_> {
    /// Reads as [`Access::read`] does.
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize, Error> {
        self.access.read(offset, to)
    }

    /// Writes as [`Access::write`] does.
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<usize, Error> {
        self.access.write(offset, from)
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Request")
            .field("operation", &self.operation)
            .field("sender", &self.sender)
            .field("words", &self.words)
            .field("readable", &self.readable)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

//! A client's end.

use std::time::Duration;

use insula_abi::server::Message;

use crate::sys::{self, Handle};
use crate::{Error, Words};

/// What a client asks for.
#[derive(Debug, Default)]
pub struct Call<'a> {
    /// Operation: the server says what there is.
    pub operation: u32,
    /// Words.
    pub words: Words,
    /// What the server may read.
    pub readable: &'a [u8],
    /// What it may write.
    pub writable: &'a mut [u8],
    /// Within what time it must have replied; `None` for any.
    pub timeout: Option<Duration>,
}

/// An open endpoint of another process.
#[derive(Debug)]
pub struct Client {
    handle: Handle,
}

impl Client {
    /// Opens an endpoint by its name.
    ///
    /// # Errors
    /// [`Error::NoServer`], [`Error::NotOnANode`].
    pub fn open(name: &str) -> Result<Self, Error> {
        let handle = sys::open(name)?;
        Ok(Self { handle })
    }

    /// Calls, and waits for the reply. Returns its words.
    ///
    /// # Errors
    /// [`Error`].
    pub fn call(&self, call: Call<'_>) -> Result<Words, Error> {
        let mut message = Message {
            operation: call.operation,
            words: call.words,
            ..Message::default()
        };
        let windows = (call.readable, call.writable);
        sys::send(&self.handle, &mut message, windows, call.timeout)?;
        Ok(message.words)
    }
}

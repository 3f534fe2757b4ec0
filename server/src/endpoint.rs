//! A server's end.

use std::time::Duration;

use crate::sys::{self, Handle, Place};
use crate::{Access, Error, Handler, Request};

/// Bytes of what may be read that come with a request.
const FIRST: usize = 256;

/// An endpoint of this process.
#[derive(Debug)]
pub struct Endpoint {
    handle: Handle,
}

impl Endpoint {
    /// Creates an endpoint under a name of 1 to 64 bytes without `/`.
    ///
    /// # Errors
    /// [`Error::NameTaken`], [`Error::NotOnANode`].
    pub fn create(name: &str) -> Result<Self, Error> {
        let handle = sys::create(name)?;
        Ok(Self { handle })
    }

    /// Handles requests, one after the other. Several threads may do so at once, each with a handler.
    /// Returns when a signal comes, or no request within a timeout.
    pub fn serve(&self, handler: &mut impl Handler, timeout: Option<Duration>) -> Error {
        let mut place = Place::new();
        let mut received = sys::receive(&self.handle, Some(&mut place), None, timeout);
        loop {
            if let Err(errno) = received {
                return errno.into();
            }
            received = self.answer(handler, &mut place, timeout);
        }
    }

    /// Handles a request, then replies and receives the next one by one call.
    fn answer(
        &self,
        handler: &mut impl Handler,
        place: &mut Place<FIRST>,
        timeout: Option<Duration>,
    ) -> Result<(), nix::errno::Errno> {
        let message = place.message;
        let access = Remote {
            handle: &self.handle,
            request: message.request,
        };
        let length = place.first.len().min(message.readable_length as usize);
        let reply = handler.handle(&Request {
            operation: message.operation,
            sender: message.sender,
            words: message.words,
            first: &place.first[..length],
            readable: message.readable_length,
            writable: message.writable_length,
            access: &access,
        });
        let reply = Some((message.request, &reply));
        sys::receive(&self.handle, Some(place), reply, timeout)
    }
}

/// A client's memory, by the kernel.
struct Remote<'a> {
    handle: &'a Handle,
    request: u64,
}

impl Access for Remote<'_> {
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize, Error> {
        Ok(sys::read(self.handle, self.request, offset, to)?)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<usize, Error> {
        Ok(sys::write(self.handle, self.request, offset, from)?)
    }
}

//! A server's end.

use std::time::Duration;

use insula_abi::server::MESSAGE_BATCH_MAX;

use crate::sys::{self, Handle, Place};
use crate::{Access, Announcement, Error, Handler, Reply, Request};

/// Bytes of what may be read that come with a request.
const FIRST: usize = 256;
/// Most requests that are handled before the server does something else.
const WAITING_MAX: usize = 64;

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

    /// Closes it, as when it is dropped: who serves it fails with `EBADF`, and who is served gets
    /// [`Error::ServerGone`].
    pub fn close(&self) {
        self.handle.close();
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

    /// Handles the requests that are there, some at most; if there is none, waits for one for a while.
    /// Returns how many it has handled, with interrupts of devices.
    ///
    /// # Errors
    /// [`Error::Interrupted`], and others but [`Error::TimedOut`].
    pub fn serve_waiting(
        &self,
        handler: &mut impl Handler,
        wait: Duration,
    ) -> Result<usize, Error> {
        let mut place = Place::new();
        let mut received = sys::receive(&self.handle, Some(&mut place), None, Some(wait));
        for handled in 0..WAITING_MAX {
            match received.map_err(Error::from) {
                Ok(()) => {}
                Err(Error::TimedOut) => return Ok(handled),
                Err(error) => return Err(error),
            }
            let is_last = handled + 1 == WAITING_MAX;
            received = match is_last {
                true => self.answer_last(handler, &place),
                false => self.answer(handler, &mut place, Some(Duration::ZERO)),
            };
        }
        received.map_err(Error::from).map(|()| WAITING_MAX)
    }

    /// Waits until a device has interrupted, unless it has since the last call: at an endpoint to which
    /// nobody sends requests.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Interrupted`].
    pub(crate) fn wait_for_interrupt(&self, timeout: Duration) -> Result<(), Error> {
        let mut place = Place::<0>::new();
        Ok(sys::receive(
            &self.handle,
            Some(&mut place),
            None,
            Some(timeout),
        )?)
    }

    /// Returns the number of its handle.
    pub(crate) fn number(&self) -> u64 {
        self.handle.number()
    }

    /// Announces something to the kernel: for what, the protocol between it and the server says.
    ///
    /// # Errors
    /// [`Error::Other`].
    pub fn announce(&self, announcements: &[Announcement]) -> Result<(), Error> {
        for some in announcements.chunks(MESSAGE_BATCH_MAX) {
            sys::announce(&self.handle, some)?;
        }
        Ok(())
    }

    /// Handles a request, then replies and receives the next one by one call. Of an interrupt the handler hears
    /// nothing: the call has returned, that is all.
    fn answer(
        &self,
        handler: &mut impl Handler,
        place: &mut Place<FIRST>,
        timeout: Option<Duration>,
    ) -> Result<(), nix::errno::Errno> {
        if place.is_interrupt() {
            return sys::receive(&self.handle, Some(place), None, timeout);
        }
        let number = place.message.request;
        let reply = self.announced(self.handled(handler, place))?;
        sys::receive(&self.handle, Some(place), Some((number, &reply)), timeout)
    }

    /// Handles a request, and replies only.
    fn answer_last(
        &self,
        handler: &mut impl Handler,
        place: &Place<FIRST>,
    ) -> Result<(), nix::errno::Errno> {
        if place.is_interrupt() {
            return Ok(());
        }
        let number = place.message.request;
        let reply = self.announced(self.handled(handler, place))?;
        sys::receive::<FIRST>(&self.handle, None, Some((number, &reply)), None)
    }

    /// Announces as much that the rest goes by one call with the reply.
    fn announced<'a>(&self, reply: Reply<'a>) -> Result<Reply<'a>, nix::errno::Errno> {
        let most = MESSAGE_BATCH_MAX - 1;
        let (now, later) = reply
            .announcements
            .split_at(reply.announcements.len().saturating_sub(most));
        for some in now.chunks(MESSAGE_BATCH_MAX) {
            sys::announce(&self.handle, some)?;
        }
        Ok(Reply {
            announcements: later,
            ..reply
        })
    }

    /// Has a handler handle a request. Returns its reply.
    fn handled<'a>(&self, handler: &'a mut impl Handler, place: &Place<FIRST>) -> Reply<'a> {
        let message = place.message;
        let access = Remote {
            handle: &self.handle,
            request: message.request,
        };
        let length = place.first.len().min(message.readable_length as usize);
        handler.handle(&Request {
            operation: message.operation,
            sender: message.sender,
            words: message.words,
            first: &place.first[..length],
            readable: message.readable_length,
            writable: message.writable_length,
            access: &access,
        })
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

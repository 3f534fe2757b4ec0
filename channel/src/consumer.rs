//! Receiving.

use insula_abi::channel::Pages;
use zerocopy::FromBytes;

use crate::header::{Header, sequence};
use crate::ring::{Broken, ControlWord, Ring};
use crate::sync::Ordering;
use crate::wake::{self, Peer};
use crate::words::Words;

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The message does not fit the buffer and stays in the ring.
    #[error("a message of {size} bytes does not fit the buffer")]
    TooLong {
        /// Size of the message in bytes.
        size: usize,
    },
    /// The ring cannot be used any more.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// A received message, which is in the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Kind of the message.
    pub kind: u8,
    /// Whether a producer waits for the freed slots.
    pub peer: Peer,
    pages: usize,
    size: usize,
}

impl Received {
    /// The payload without the page references. `buffer` is the receive buffer.
    #[must_use]
    pub fn bytes<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        buffer
            .get(self.pages * size_of::<Pages>()..self.size)
            .unwrap_or_default()
    }

    /// The page references, which the caller must validate.
    pub fn pages<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = Pages> + 'a {
        let references = buffer.chunks_exact(size_of::<Pages>()).take(self.pages);
        references.filter_map(|bytes| Pages::read_from_bytes(bytes).ok())
    }
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct Consumer<W> {
    ring: Ring<W>,
    head: u32,
}

impl<W: Words> Consumer<W> {
    /// The only consumer of a new ring.
    pub fn new(ring: Ring<W>) -> Self {
        Self { ring, head: 0 }
    }

    /// Receives the next message, if any, into `buffer`.
    ///
    /// # Errors
    /// [`ReceiveError::TooLong`] if the buffer is too small; the message stays.
    /// [`ReceiveError::Broken`] if the peer has broken the protocol, for this and all later calls.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError> {
        let Some(header) = self.next() else {
            return Ok(None);
        };
        let slots = header.slots();
        if !header.is_valid() {
            return Err(Broken("a message is shorter than its references to pages").into());
        }
        if slots > self.ring.slots() {
            return Err(Broken("a message is longer than the ring").into());
        }
        let size = usize::from(header.size);
        let into = buffer
            .get_mut(..size)
            .ok_or(ReceiveError::TooLong { size })?;
        self.ring.read(self.head, into);
        Ok(Some(Received {
            kind: header.kind,
            peer: self.advance(slots),
            pages: header.pages.into(),
            size,
        }))
    }

    /// Requests a wake-up by the peer, then checks the ring again. If it returns true, sleep until
    /// woken. In both cases call [`Consumer::stay_awake`] before receiving again.
    pub fn prepare_to_sleep(&mut self) -> bool {
        wake::request(&self.ring, ControlWord::ConsumerWake, self.head);
        self.next().is_none()
    }

    /// Cancels the request for a wake-up.
    pub fn stay_awake(&mut self) {
        wake::cancel(&self.ring, ControlWord::ConsumerWake);
    }

    /// The header of the next message, if any.
    fn next(&self) -> Option<Header> {
        let header = Header::from_word(self.ring.load_header(self.head, Ordering::Acquire));
        (header.sequence == sequence(self.head)).then_some(header)
    }

    /// Frees slots for the producers.
    fn advance(&mut self, slots: u32) -> Peer {
        let from = self.head;
        self.head = from.wrapping_add(slots);
        self.ring
            .store_control(ControlWord::Head, self.head.into(), Ordering::Release);
        wake::check(&self.ring, ControlWord::ProducerWake, from, slots)
    }
}

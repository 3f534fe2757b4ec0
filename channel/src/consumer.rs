//! Receiving.

use insula_abi::channel::Pages;
use zerocopy::FromBytes;

use crate::header::{Header, turn};
use crate::ring::{Broken, ControlWord, Ring};
use crate::sync::Ordering;
use crate::wake::{self, Peer};
use crate::words::Words;

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The message does not fit the buffer. It stays in the ring.
    #[error("a message of {size} bytes does not fit the buffer")]
    TooLong {
        /// Its bytes.
        size: usize,
    },
    /// The ring is of no more use.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// A message, copied to the buffer that it was received with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its kind.
    pub kind: u8,
    /// Whether a producer waits for the room that it has left.
    pub peer: Peer,
    pages: usize,
    size: usize,
}

impl Received {
    /// Its bytes, without the references. `buffer` is what it was received with.
    #[must_use]
    pub fn bytes<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        buffer
            .get(self.pages * size_of::<Pages>()..self.size)
            .unwrap_or_default()
    }

    /// Its references to pages: claims of the peer, yet to be checked.
    pub fn pages<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = Pages> + 'a {
        let references = buffer.chunks_exact(size_of::<Pages>()).take(self.pages);
        references.filter_map(|bytes| Pages::read_from_bytes(bytes).ok())
    }
}

/// The end that receives.
#[derive(Debug)]
pub struct Consumer<W> {
    ring: Ring<W>,
    head: u32,
}

impl<W: Words> Consumer<W> {
    /// The only consumer of a ring that nothing has been received from.
    pub fn new(ring: Ring<W>) -> Self {
        Self { ring, head: 0 }
    }

    /// Receives the next message, if there is one, into `buffer`.
    ///
    /// # Errors
    /// [`ReceiveError::TooLong`] when the buffer is too small: the message stays.
    /// [`ReceiveError::Broken`] when the peer wrote nonsense, now and ever after.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, ReceiveError> {
        let Some(header) = self.next() else {
            return Ok(None);
        };
        let slots = header.slots();
        if !header.is_sound() {
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

    /// Tells the peer that it is to ring, and looks again. If this answers true, sleep until rung;
    /// then, or if it does not, call [`Consumer::stay_awake`] and go on receiving.
    pub fn prepare_to_sleep(&mut self) -> bool {
        wake::announce(&self.ring, ControlWord::ConsumerWake, self.head);
        self.next().is_none()
    }

    /// Tells the peer that it need not ring.
    pub fn stay_awake(&mut self) {
        wake::cancel(&self.ring, ControlWord::ConsumerWake);
    }

    /// The header of the next message, if there is one.
    fn next(&self) -> Option<Header> {
        let header = Header::from_word(self.ring.load_header(self.head, Ordering::Acquire));
        (header.turn == turn(self.head)).then_some(header)
    }

    /// Gives slots back to the producers.
    fn advance(&mut self, slots: u32) -> Peer {
        let from = self.head;
        self.head = from.wrapping_add(slots);
        self.ring
            .store_control(ControlWord::Head, self.head.into(), Ordering::Release);
        wake::look(&self.ring, ControlWord::ProducerWake, from, slots)
    }
}

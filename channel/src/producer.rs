//! Sending, by one producer or several of one side.

use insula_abi::channel::{Pages, SLOT_BYTES};
use zerocopy::IntoBytes;

use crate::header::{Header, SIZE_MAX, sequence};
use crate::ring::{Broken, ControlWord, Ring};
use crate::sync::{AtomicU32, Ordering};
use crate::wake::{self, Peer};
use crate::words::Words;

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too few free slots at the moment.
    #[error("the ring is full")]
    Full,
    /// The message is too long for the ring.
    #[error("a message of {size} bytes exceeds the ring's maximum of {max}")]
    TooLong {
        /// Size of the message in bytes, including page references.
        size: usize,
        /// Maximum size.
        max: usize,
    },
    /// The ring cannot be used any more.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Kind, defined by the users of the ring.
    pub kind: u8,
    /// Page references, at most 255.
    pub pages: &'a [Pages],
    /// Payload.
    pub bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// A message without page references.
    #[must_use]
    pub fn bytes(kind: u8, bytes: &'a [u8]) -> Self {
        Self {
            kind,
            pages: &[],
            bytes,
        }
    }

    /// Its header, for a ring with this number of slots.
    fn header(&self, slots: u32) -> Result<Header, SendError> {
        let size = size_of_val(self.pages) + self.bytes.len();
        let max = SIZE_MAX.min(slots as usize * SLOT_BYTES);
        match (u16::try_from(size), u8::try_from(self.pages.len())) {
            (Ok(short), Ok(pages)) if size <= max => Ok(Header {
                sequence: 0,
                size: short,
                pages,
                kind: self.kind,
            }),
            _ => Err(SendError::TooLong { size, max }),
        }
    }
}

/// Writes a message to its reserved slots and publishes it.
fn publish<W: Words>(ring: &Ring<W>, position: u32, header: Header, message: &Message) -> Peer {
    let slots = header.slots();
    // All slots get a new sequence number, so that no stale one of an earlier lap is left.
    for position in (1..slots).map(|count| position.wrapping_add(count)) {
        ring.store_header(position, sequence(position).into(), Ordering::Relaxed);
    }
    ring.write(position, message.pages.as_bytes(), message.bytes);
    let sequence = sequence(position);
    ring.store_header(
        position,
        Header { sequence, ..header }.to_word(),
        Ordering::Release,
    );
    wake::check(ring, ControlWord::ConsumerWake, position, slots)
}

/// Loads the consumer's head, which must be a position.
fn load_head<W: Words>(ring: &Ring<W>) -> Result<u32, Broken> {
    let head = ring.load_control(ControlWord::Head, Ordering::Acquire);
    u32::try_from(head).map_err(|_| Broken("the head is not a position"))
}

const BAD_HEAD: Broken = Broken("the head is outside of the sent messages");

/// Whether a message of `slots` slots fits between `head` and `tail`.
fn fits<W: Words>(ring: &Ring<W>, head: u32, tail: u32, slots: u32) -> Result<bool, Broken> {
    let used = tail.wrapping_sub(head);
    let free = ring.slots().checked_sub(used).ok_or(BAD_HEAD)?;
    Ok(slots <= free)
}

/// The sending end of a ring with one producer.
#[derive(Debug)]
pub struct Producer<W> {
    ring: Ring<W>,
    tail: u32,
    /// The consumer's head when last loaded.
    head: u32,
}

impl<W: Words> Producer<W> {
    /// The only producer of a new ring.
    pub fn new(ring: Ring<W>) -> Self {
        Self {
            ring,
            tail: 0,
            head: 0,
        }
    }

    /// Sends a message; returns whether the consumer must be woken.
    ///
    /// # Errors
    /// [`SendError::Full`] if there are too few free slots, [`SendError::TooLong`] if the message
    /// can never fit, [`SendError::Broken`] if the peer has broken the protocol.
    pub fn send(&mut self, message: &Message) -> Result<Peer, SendError> {
        let header = message.header(self.ring.slots())?;
        let slots = header.slots();
        if !fits(&self.ring, self.head, self.tail, slots)? {
            self.head = self.fresh_head()?;
            if !fits(&self.ring, self.head, self.tail, slots)? {
                return Err(SendError::Full);
            }
        }
        let position = self.tail;
        self.tail = position.wrapping_add(slots);
        Ok(publish(&self.ring, position, header, message))
    }

    /// After [`SendError::Full`]: requests a wake-up by the peer, then checks the ring again. If it
    /// returns true, sleep until woken. In both cases call [`Producer::stay_awake`] before the next
    /// attempt.
    ///
    /// # Errors
    /// The peer has broken the protocol.
    pub fn prepare_to_sleep(&mut self) -> Result<bool, Broken> {
        wake::request(&self.ring, ControlWord::ProducerWake, self.head);
        Ok(self.fresh_head()? == self.head)
    }

    /// Cancels the request for a wake-up.
    pub fn stay_awake(&mut self) {
        wake::cancel(&self.ring, ControlWord::ProducerWake);
    }

    /// Loads the consumer's head, which must lie between its last value and the tail.
    fn fresh_head(&self) -> Result<u32, Broken> {
        let head = load_head(&self.ring)?;
        let advanced = head.wrapping_sub(self.head);
        if advanced > self.tail.wrapping_sub(self.head) {
            return Err(BAD_HEAD);
        }
        Ok(head)
    }
}

/// Tail of a ring with several producers, in memory that the consumer cannot access.
#[derive(Debug)]
pub struct Tail(AtomicU32);

impl Tail {
    /// The tail of a new ring.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Default for Tail {
    fn default() -> Self {
        Self::new()
    }
}

/// A sending end of a ring with several producers, which share the tail.
#[derive(Debug)]
pub struct SharedProducer<'a, W> {
    ring: Ring<W>,
    tail: &'a Tail,
    /// The consumer's head when the ring was full.
    head: u32,
}

impl<'a, W: Words> SharedProducer<'a, W> {
    /// One of the producers of a ring.
    pub fn new(ring: Ring<W>, tail: &'a Tail) -> Self {
        Self {
            ring,
            tail,
            head: 0,
        }
    }

    /// Sends a message; returns whether the consumer must be woken.
    ///
    /// # Errors
    /// As of [`Producer::send`].
    pub fn send(&mut self, message: &Message) -> Result<Peer, SendError> {
        let header = message.header(self.ring.slots())?;
        let position = self.reserve(header.slots())?;
        Ok(publish(&self.ring, position, header, message))
    }

    fn reserve(&mut self, slots: u32) -> Result<u32, SendError> {
        // Acquire: the head loaded next must not be older than the one that the last reservation
        // relied on.
        let mut tail = self.tail.0.load(Ordering::Acquire);
        loop {
            self.head = load_head(&self.ring)?;
            let fits = fits(&self.ring, self.head, tail, slots);
            if !matches!(fits, Ok(true)) {
                // The tail may be stale: messages may have been sent and received since it was
                // loaded.
                let now = self.tail.0.load(Ordering::Acquire);
                if now == tail {
                    return Err(fits.map_or_else(SendError::from, |_| SendError::Full));
                }
                tail = now;
                continue;
            }
            let (next, order) = (tail.wrapping_add(slots), Ordering::AcqRel);
            match self
                .tail
                .0
                .compare_exchange_weak(tail, next, order, Ordering::Acquire)
            {
                Ok(_) => return Ok(tail),
                Err(now) => tail = now,
            }
        }
    }

    /// After [`SendError::Full`]: requests a wake-up by the peer, then checks the ring again. If it
    /// returns true, sleep until woken; otherwise there may be free slots. In both cases the caller
    /// must wake all other producers of the ring, since the peer only sees one wake word.
    ///
    /// # Errors
    /// The peer has broken the protocol.
    pub fn prepare_to_sleep(&mut self) -> Result<bool, Broken> {
        wake::request(&self.ring, ControlWord::ProducerWake, self.head);
        Ok(load_head(&self.ring)? == self.head)
    }
}

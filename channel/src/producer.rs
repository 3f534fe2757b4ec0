//! Sending, by one producer or by several of the same side.

use insula_abi::channel::{Pages, SLOT_BYTES};
use zerocopy::IntoBytes;

use crate::header::{Header, SIZE_MAX, turn};
use crate::ring::{Broken, ControlWord, Ring};
use crate::sync::{AtomicU32, Ordering};
use crate::wake::{self, Peer};
use crate::words::Words;

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no room now.
    #[error("the ring is full")]
    Full,
    /// It will never fit.
    #[error("a message of {size} bytes is longer than the {max} that the ring can carry")]
    TooLong {
        /// Its bytes, references to pages included.
        size: usize,
        /// Most that it could have.
        max: usize,
    },
    /// The ring is of no more use.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// What to send.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// What it is, between those who use the ring.
    pub kind: u8,
    /// References to pages, at most 255.
    pub pages: &'a [Pages],
    /// Bytes.
    pub bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// A message without references to pages.
    #[must_use]
    pub fn bytes(kind: u8, bytes: &'a [u8]) -> Self {
        Self {
            kind,
            pages: &[],
            bytes,
        }
    }

    /// Its header, for a ring of that many slots.
    fn header(&self, slots: u32) -> Result<Header, SendError> {
        let size = size_of_val(self.pages) + self.bytes.len();
        let max = SIZE_MAX.min(slots as usize * SLOT_BYTES);
        match (u16::try_from(size), u8::try_from(self.pages.len())) {
            (Ok(short), Ok(pages)) if size <= max => Ok(Header {
                turn: 0,
                size: short,
                pages,
                kind: self.kind,
            }),
            _ => Err(SendError::TooLong { size, max }),
        }
    }
}

/// Writes a message to slots that were reserved for it, and tells the consumer.
fn publish<W: Words>(ring: &Ring<W>, position: u32, header: Header, message: &Message) -> Peer {
    let slots = header.slots();
    // All turns advance, also those that nobody will look at: so none of an earlier lap is left.
    for position in (1..slots).map(|count| position.wrapping_add(count)) {
        ring.store_header(position, turn(position).into(), Ordering::Relaxed);
    }
    ring.write(position, message.pages.as_bytes(), message.bytes);
    let turn = turn(position);
    ring.store_header(
        position,
        Header { turn, ..header }.to_word(),
        Ordering::Release,
    );
    wake::look(ring, ControlWord::ConsumerWake, position, slots)
}

/// The consumer's head. It is a position, or else the ring is broken.
fn load_head<W: Words>(ring: &Ring<W>) -> Result<u32, Broken> {
    let head = ring.load_control(ControlWord::Head, Ordering::Acquire);
    u32::try_from(head).map_err(|_| Broken("its head is no position"))
}

const BAD_HEAD: Broken = Broken("its head is where nothing was sent");

/// Whether a message of `slots` slots fits between `head` and `tail`.
fn fits<W: Words>(ring: &Ring<W>, head: u32, tail: u32, slots: u32) -> Result<bool, Broken> {
    let used = tail.wrapping_sub(head);
    let free = ring.slots().checked_sub(used).ok_or(BAD_HEAD)?;
    Ok(slots <= free)
}

/// The end that sends, alone.
#[derive(Debug)]
pub struct Producer<W> {
    ring: Ring<W>,
    tail: u32,
    /// The consumer's head when last looked at.
    head: u32,
}

impl<W: Words> Producer<W> {
    /// The only producer of a ring that nothing has been sent by.
    pub fn new(ring: Ring<W>) -> Self {
        Self {
            ring,
            tail: 0,
            head: 0,
        }
    }

    /// Sends a message and tells whether the consumer has to be rung.
    ///
    /// # Errors
    /// [`SendError::Full`] when there is no room now, [`SendError::TooLong`] when there will never
    /// be, [`SendError::Broken`] when the peer wrote nonsense.
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

    /// After [`SendError::Full`]: tells the peer that it is to ring, and looks again. If this answers
    /// true, sleep until rung; then, or if it does not, call [`Producer::stay_awake`] and try again.
    ///
    /// # Errors
    /// When the peer wrote nonsense.
    pub fn prepare_to_sleep(&mut self) -> Result<bool, Broken> {
        wake::announce(&self.ring, ControlWord::ProducerWake, self.head);
        Ok(self.fresh_head()? == self.head)
    }

    /// Tells the peer that it need not ring.
    pub fn stay_awake(&mut self) {
        wake::cancel(&self.ring, ControlWord::ProducerWake);
    }

    /// The consumer's head, which lies between what it was and the tail.
    fn fresh_head(&self) -> Result<u32, Broken> {
        let head = load_head(&self.ring)?;
        let advanced = head.wrapping_sub(self.head);
        if advanced > self.tail.wrapping_sub(self.head) {
            return Err(BAD_HEAD);
        }
        Ok(head)
    }
}

/// Where the next message of a ring with several producers goes. It belongs to them and never lies in
/// memory of the consumer.
#[derive(Debug)]
pub struct Tail(AtomicU32);

impl Tail {
    /// Of a ring that nothing has been sent by.
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

/// One of several that send to the same ring; all of them share the tail.
#[derive(Debug)]
pub struct SharedProducer<'a, W> {
    ring: Ring<W>,
    tail: &'a Tail,
    /// The consumer's head when there was no room.
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

    /// Sends a message and tells whether the consumer has to be rung.
    ///
    /// # Errors
    /// As of [`Producer::send`].
    pub fn send(&mut self, message: &Message) -> Result<Peer, SendError> {
        let header = message.header(self.ring.slots())?;
        let position = self.reserve(header.slots())?;
        Ok(publish(&self.ring, position, header, message))
    }

    fn reserve(&mut self, slots: u32) -> Result<u32, SendError> {
        // Acquire: what the others knew of the head when they reserved is known here, so that the
        // head loaded next is not older than this tail allows.
        let mut tail = self.tail.0.load(Ordering::Acquire);
        loop {
            self.head = load_head(&self.ring)?;
            let fits = fits(&self.ring, self.head, tail, slots);
            if !matches!(fits, Ok(true)) {
                // Others may have sent, and been received, since the tail was loaded.
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

    /// After [`SendError::Full`]: tells the peer that it is to ring, and looks again. If this answers
    /// true, sleep until rung; if not, there may be room. Either way, whoever learns of room, by being
    /// rung or by this, wakes all producers of the ring, as the peer sees but one of them.
    ///
    /// # Errors
    /// When the peer wrote nonsense.
    pub fn prepare_to_sleep(&mut self) -> Result<bool, Broken> {
        wake::announce(&self.ring, ControlWord::ProducerWake, self.head);
        Ok(load_head(&self.ring)? == self.head)
    }
}

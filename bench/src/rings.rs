//! A channel's rings between two processes of the base: compared with a channel to a node when both
//! sides poll the rings. No side sleeps, so no doorbell is sent.

#![allow(unsafe_code, reason = "the rings are mapped from a file")]

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::path::Path;

use insula_abi::channel::{RINGS_SLOTS, Rings, Slot, rings_size};
use insula_channel::{
    Consumer, Message, Producer, ReceiveError, Received, Ring, SendError, SharedWords,
};
use insula_driver::channel::SLOTS;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

const WORD: usize = size_of::<u64>();

/// Side of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The process that made the file.
    First,
    /// The process that was given the path.
    Second,
}

/// One end of the rings.
pub struct RingsEnd {
    producer: Producer<SharedWords>,
    consumer: Consumer<SharedWords>,
}

impl RingsEnd {
    /// Makes a file with empty rings, as long as those to a node.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn make(path: &Path) -> io::Result<()> {
        File::create(path)?.set_len(rings_size(SLOTS))
    }

    /// Maps one end of the rings in that file, for as long as this process lives.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn open(path: &Path, side: Side) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let size = usize::try_from(rings_size(SLOTS)).map_err(io::Error::other)?;
        let length = NonZeroUsize::new(size).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses an unused address.
        let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) }?;
        // SAFETY: `start` is so many bytes from the start of a page on, readable and writable, and
        // never unmapped; nothing else in this process refers to them.
        let words = unsafe { SharedWords::new(start.as_ptr().cast(), size / WORD) };
        let first = RINGS_SLOTS as usize / WORD;
        let second = first + SLOTS as usize * size_of::<Slot>() / WORD;
        let ring = |control, slots| {
            Ring::new(words, control / WORD, slots, SLOTS).map_err(io::Error::other)
        };
        let there = ring(offset_of!(Rings, to_node), first)?;
        let back = ring(offset_of!(Rings, to_base), second)?;
        let (out, into) = match side {
            Side::First => (there, back),
            Side::Second => (back, there),
        };
        Ok(Self {
            producer: Producer::new(out),
            consumer: Consumer::new(into),
        })
    }

    /// Sends a message as soon as there is room.
    ///
    /// # Errors
    /// When it is longer than the ring, or the other side violated the protocol.
    pub fn send(&mut self, message: &Message<'_>) -> io::Result<()> {
        loop {
            match self.producer.send(message) {
                Ok(_) => return Ok(()),
                Err(SendError::Full) => std::hint::spin_loop(),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// When it is longer than `buffer`, or the other side violated the protocol.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Received, ReceiveError> {
        loop {
            if let Some(received) = self.consumer.receive(buffer)? {
                return Ok(received);
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_there_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rings");
        RingsEnd::make(&path).unwrap();
        let mut first = RingsEnd::open(&path, Side::First).unwrap();
        let mut second = RingsEnd::open(&path, Side::Second).unwrap();
        let mut buffer = [0; 64];
        for size in [0, 1, 32, 64] {
            first.send(&Message::bytes(1, &[7; 64][..size])).unwrap();
            let there = second.receive(&mut buffer).unwrap();
            second
                .send(&Message::bytes(2, there.bytes(&buffer)))
                .unwrap();
            let back = first.receive(&mut buffer).unwrap();
            assert_eq!((back.kind, back.bytes(&buffer)), (2, &[7; 64][..size]));
        }
    }
}

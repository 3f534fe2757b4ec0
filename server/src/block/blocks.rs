//! Block servers: a block device that another process asks by messages.
//!
//! A server says with [`operation::IDENTIFY`] which *instance* it is, and a client names that in all its other
//! requests. So it learns that a server has been started anew, which may have lost what was not flushed, as
//! NFS' clients do by the verifier of their writes (RFC 1813, 4.8): `ESTALE`. One process at a time has the
//! device.

use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::{BlockDevice, DeviceError, Piece};
use crate::{Handler, Reply, Request, Words};

/// What a client asks for. Word 0 is the server's instance, word 1 a number of a block. Word 0 of the reply is 0, or
/// a negative error number.
pub mod operation {
    /// Replies with the instance, the bytes of a block and the number of blocks in the words 1 to 3. Word 0 of the
    /// request is 0.
    pub const IDENTIFY: u32 = 1;
    /// Reads blocks to what may be written: [`BYTES_MAX`](super::BYTES_MAX) at most.
    pub const READ: u32 = 2;
    /// Writes blocks from what may be read: as many at most.
    pub const WRITE: u32 = 3;
    /// Writes several pieces, in any order: word 1 is their number, [`PIECES_MAX`](super::PIECES_MAX) at most. What may
    /// be read is a table with the block and the bytes of each, of 8 bytes each, then these bytes, in the same order.
    pub const WRITE_EACH: u32 = 5;
    /// Replies when all that was written survives a loss of power.
    pub const FLUSH: u32 = 4;
}

/// Most bytes of a request's blocks.
pub const BYTES_MAX: usize = 512 << 10;
/// Most pieces that one request writes.
pub const PIECES_MAX: usize = 512;
/// Bytes of a piece's entry in the table.
const ENTRY: usize = 16;

/// A block server.
#[derive(Debug)]
pub struct Blocks<D> {
    device: D,
    instance: u64,
    /// The process that has the device.
    owner: Option<u32>,
    /// Whether there is a process of that id.
    is_alive: fn(u32) -> bool,
    data: Vec<u8>,
}

impl<D: BlockDevice> Blocks<D> {
    /// Serves a device to one process at a time. `is_alive` tells whether there is still one of that id.
    pub fn new(device: D, is_alive: fn(u32) -> bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
        Self {
            device,
            instance: now_ns.rotate_left(20) ^ u64::from(process::id()) | 1,
            owner: None,
            is_alive,
            data: Vec::new(),
        }
    }

    /// Returns the device, when it is served no longer.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Has the device flushed, as at the server's end.
    ///
    /// # Errors
    /// The device's.
    pub fn flush(&mut self) -> Result<(), DeviceError> {
        self.device.flush()
    }

    fn answer(&mut self, request: &Request<'_>) -> Result<Words, Errno> {
        if request.operation == operation::IDENTIFY {
            return self.identify(request.sender);
        }
        let [instance, block, ..] = request.words;
        if instance != self.instance || self.owner != Some(request.sender) {
            return Err(Errno::ESTALE);
        }
        let done = match request.operation {
            operation::READ => {
                self.data.resize(length(request.writable, BYTES_MAX)?, 0);
                self.device.read(block, &mut self.data)
            }
            operation::WRITE => {
                let bytes = read_all(request, BYTES_MAX)?;
                self.device.write(block, &bytes)
            }
            operation::WRITE_EACH => {
                let bytes = read_all(request, PIECES_MAX * ENTRY + BYTES_MAX)?;
                self.device.write_each(&pieces_in(&bytes, block)?)
            }
            operation::FLUSH => self.device.flush(),
            _ => return Err(Errno::ENOSYS),
        };
        done.map(|()| Words::default()).map_err(|error| error.errno)
    }

    fn identify(&mut self, sender: u32) -> Result<Words, Errno> {
        if self
            .owner
            .is_some_and(|owner| owner != sender && (self.is_alive)(owner))
        {
            return Err(Errno::EBUSY);
        }
        self.owner = Some(sender);
        let (size, count) = (self.device.block_size(), self.device.block_count());
        Ok([0, self.instance, size as u64, count, 0, 0])
    }
}

fn length(bytes: u64, most: usize) -> Result<usize, Errno> {
    let bytes = usize::try_from(bytes).map_err(|_| Errno::EMSGSIZE)?;
    match bytes <= most {
        true => Ok(bytes),
        false => Err(Errno::EMSGSIZE),
    }
}

/// Reads all that the client has to write.
fn read_all(request: &Request<'_>, most: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; length(request.readable, most)?];
    let mut done = 0;
    while done < bytes.len() {
        match request.read(done as u64, &mut bytes[done..]) {
            Ok(0) | Err(_) => return Err(Errno::EFAULT),
            Ok(count) => done += count,
        }
    }
    Ok(bytes)
}

/// Returns what [`operation::WRITE_EACH`] has for these pieces.
pub(super) fn message_of(pieces: &[Piece<'_>]) -> Vec<u8> {
    let entry = |(block, bytes): &Piece<'_>| [*block, bytes.len() as u64];
    let table = pieces.iter().flat_map(entry).flat_map(u64::to_le_bytes);
    let bytes = pieces.iter().flat_map(|(_, bytes)| *bytes).copied();
    table.chain(bytes).collect()
}

/// Reads that again.
fn pieces_in(message: &[u8], count: u64) -> Result<Vec<Piece<'_>>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    let bytes = count.checked_mul(ENTRY).filter(|_| count <= PIECES_MAX);
    let (table, mut rest) = bytes
        .and_then(|bytes| message.split_at_checked(bytes))
        .ok_or(Errno::EINVAL)?;
    let mut pieces = Vec::with_capacity(count);
    for entry in table.chunks_exact(ENTRY) {
        let word = |at: usize| entry[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let length = usize::try_from(word(8)).map_err(|_| Errno::EINVAL)?;
        let (piece, others) = rest.split_at_checked(length).ok_or(Errno::EINVAL)?;
        pieces.push((word(0), piece));
        rest = others;
    }
    match rest.is_empty() {
        true => Ok(pieces),
        false => Err(Errno::EINVAL),
    }
}

impl<D: BlockDevice> Handler for Blocks<D> {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        self.data.clear();
        let words = self.answer(request).unwrap_or_else(|errno| {
            self.data.clear();
            let mut words = Words::default();
            words[0] = i64::from(errno as i32).cast_unsigned().wrapping_neg();
            words
        });
        Reply::new(words, &self.data)
    }
}

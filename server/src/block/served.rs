//! A block device that a [block server](super::Blocks) serves.
//!
//! The server may be killed at any time, and started again: what was written and not flushed may be lost with
//! it. So that is kept here, and written again to the next instance, before anything else is asked of it. Who uses
//! the device notices nothing but the time that it took.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::blocks::{BYTES_MAX, PIECES_MAX, message_of, operation};
use super::{Access, BlockDevice, DeviceError, Piece, check};
use crate::{Call, Client, Error, Words};

/// Time within which a server must have replied, or come again.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time that another process has to end that had the device, and the interval of looks.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(20);
/// Most bytes that are kept: with more the device is flushed.
const KEPT_MAX: usize = 32 << 20;
/// Ends of a server that one access outlives.
const ENDS_MAX: u32 = 16;

/// The way to a server.
pub trait Ask {
    /// Calls, and waits for the reply.
    ///
    /// # Errors
    /// [`Error`].
    fn ask(&mut self, call: Call<'_>) -> Result<Words, Error>;
}

impl Ask for Client {
    fn ask(&mut self, call: Call<'_>) -> Result<Words, Error> {
        self.call(call)
    }
}

/// A device that a server serves.
#[derive(Debug)]
pub struct ServedDevice<A> {
    server: A,
    identity: Identity,
    /// Blocks that were written since the last flush.
    kept: BTreeMap<u64, Box<[u8]>>,
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    instance: u64,
    block_size: usize,
    block_count: u64,
}

/// Why a request was not done.
enum Failed {
    /// The server is another instance now, or none.
    Ended,
    /// For another reason.
    Other(Errno),
}

impl<A: Ask> ServedDevice<A> {
    /// Has the device of a server. It must be no other process's.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if it is; [`Errno::EIO`] if the server does not reply as one.
    pub fn open(mut server: A) -> Result<Self, DeviceError> {
        let identity = identify(&mut server).map_err(|errno| DeviceError {
            access: Access::Open,
            errno,
        })?;
        Ok(Self {
            server,
            identity,
            kept: BTreeMap::new(),
        })
    }

    /// Does something until a server has done it, whatever ends meanwhile.
    fn access(
        &mut self,
        access: Access,
        mut what: impl FnMut(&mut Self) -> Result<(), Failed>,
    ) -> Result<(), DeviceError> {
        let failed = |errno| DeviceError { access, errno };
        for _ in 0..ENDS_MAX {
            match what(self) {
                Ok(()) => return Ok(()),
                Err(Failed::Other(errno)) => return Err(failed(errno)),
                Err(Failed::Ended) => {}
            }
            match self.begin_anew() {
                Ok(()) | Err(Failed::Ended) => {}
                Err(Failed::Other(errno)) => return Err(failed(errno)),
            }
        }
        Err(failed(Errno::EIO))
    }

    /// Writes what was not flushed to a new instance of the server.
    fn begin_anew(&mut self) -> Result<(), Failed> {
        let identity = identify(&mut self.server).map_err(Failed::Other)?;
        let old = std::mem::replace(&mut self.identity, identity);
        if (old.block_size, old.block_count) != (identity.block_size, identity.block_count) {
            self.identity = old;
            return Err(Failed::Other(Errno::ENXIO));
        }
        let kept = self.kept.iter().map(|(&block, bytes)| (block, &**bytes));
        let kept: Vec<Piece<'_>> = kept.collect();
        groups(&kept).try_for_each(|pieces| write(&mut self.server, identity.instance, pieces))
    }

    /// Writes pieces that one request takes, and keeps them until the next flush.
    fn write_group(&mut self, pieces: &[Piece<'_>]) -> Result<(), DeviceError> {
        let (size, bytes) = (
            self.block_size(),
            pieces.iter().map(|(_, piece)| piece.len()),
        );
        if self.kept.len() * size + bytes.sum::<usize>() > KEPT_MAX {
            self.flush()?;
        }
        for (block, piece) in pieces {
            for (at, bytes) in (*block..).zip(piece.chunks(size)) {
                self.kept.insert(at, bytes.into());
            }
        }
        let first = pieces.first().map_or(0, |(block, _)| *block);
        self.access(Access::Write(first), |device| {
            write(&mut device.server, device.identity.instance, pieces)
        })
    }
}

/// Cuts pieces of [`BYTES_MAX`] at most into groups that one request takes.
fn groups<'a>(pieces: &'a [Piece<'a>]) -> impl Iterator<Item = &'a [Piece<'a>]> {
    let mut rest = pieces;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = rest.iter().take(PIECES_MAX).take_while(|(_, piece)| {
            bytes += piece.len();
            bytes <= BYTES_MAX
        });
        let (group, others) = rest.split_at(fitting.count());
        rest = others;
        (!group.is_empty()).then_some(group)
    })
}

/// Has a server write pieces that one request takes.
fn write(server: &mut impl Ask, instance: u64, pieces: &[Piece<'_>]) -> Result<(), Failed> {
    match pieces {
        [(block, bytes)] => request(
            server,
            (operation::WRITE, [instance, *block]),
            bytes,
            &mut [],
        ),
        pieces => {
            let words = [instance, pieces.len() as u64];
            let message = message_of(pieces);
            request(server, (operation::WRITE_EACH, words), &message, &mut [])
        }
    }
}

/// Asks a server what it is, while another process that had the device is about to end.
fn identify(server: &mut impl Ask) -> Result<Identity, Errno> {
    let (began, mut ends) = (Instant::now(), 0);
    loop {
        let call = Call {
            operation: operation::IDENTIFY,
            timeout: Some(TIMEOUT),
            ..Call::default()
        };
        match server.ask(call).map(|words| (status(words), words)) {
            Ok((Ok(()), [_, instance, block_size, block_count, ..])) => {
                let block_size = usize::try_from(block_size).unwrap_or_default();
                return match block_size.is_power_of_two() && block_size <= BYTES_MAX {
                    true => Ok(Identity {
                        instance,
                        block_size,
                        block_count,
                    }),
                    false => Err(Errno::EIO),
                };
            }
            Ok((Err(Errno::EBUSY), _)) if began.elapsed() < BUSY_TIMEOUT => thread::sleep(INTERVAL),
            Ok((Err(errno), _)) => return Err(errno),
            Err(Error::ServerGone) if ends < ENDS_MAX => ends += 1,
            Err(Error::Interrupted) => {}
            Err(_) => return Err(Errno::EIO),
        }
    }
}

/// The status of a reply.
fn status(words: Words) -> Result<(), Errno> {
    match words[0].cast_signed() {
        0 => Ok(()),
        negative => {
            let number = i32::try_from(negative.unsigned_abs()).unwrap_or_default();
            Err(Errno::from_raw(number))
        }
    }
}

fn request(
    server: &mut impl Ask,
    (operation, [instance, block]): (u32, [u64; 2]),
    readable: &[u8],
    writable: &mut [u8],
) -> Result<(), Failed> {
    loop {
        let words = server.ask(Call {
            operation,
            words: [instance, block, 0, 0, 0, 0],
            readable,
            writable: &mut *writable,
            timeout: Some(TIMEOUT),
        });
        return match words.map(status) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Errno::ESTALE)) | Err(Error::ServerGone) => Err(Failed::Ended),
            Ok(Err(errno)) => Err(Failed::Other(errno)),
            Err(Error::Interrupted) => continue,
            Err(_) => Err(Failed::Other(Errno::EIO)),
        };
    }
}

impl<A: Ask> BlockDevice for ServedDevice<A> {
    fn block_size(&self) -> usize {
        self.identity.block_size
    }

    fn block_count(&self) -> u64 {
        self.identity.block_count
    }

    fn read(&mut self, block: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        let access = Access::Read(block);
        check(self, access, to.len())?;
        let blocks = (BYTES_MAX / self.block_size()) as u64;
        for (number, to) in (0..).zip(to.chunks_mut(BYTES_MAX)) {
            let block = block + number * blocks;
            self.access(access, |device| {
                let words = [device.identity.instance, block];
                request(&mut device.server, (operation::READ, words), &[], to)
            })?;
        }
        Ok(())
    }

    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.write_each(&[(block, from)])
    }

    fn write_each(&mut self, pieces: &[Piece<'_>]) -> Result<(), DeviceError> {
        for (block, piece) in pieces {
            check(self, Access::Write(*block), piece.len())?;
        }
        let blocks = BYTES_MAX / self.block_size();
        let cut = pieces.iter().flat_map(|(block, piece)| {
            let starts = (*block..).step_by(blocks);
            starts.zip(piece.chunks(BYTES_MAX))
        });
        let cut: Vec<Piece<'_>> = cut.collect();
        groups(&cut).try_for_each(|group| self.write_group(group))
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.access(Access::Flush, |device| {
            let words = [device.identity.instance, 0];
            request(&mut device.server, (operation::FLUSH, words), &[], &mut [])
        })?;
        self.kept.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;

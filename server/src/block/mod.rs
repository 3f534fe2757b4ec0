//! Block devices: what file systems on disk are on.
//!
//! | type | what it is |
//! |---|---|
//! | [`FileDevice`] | a file or block device of the base |
//! | [`Nvme`](crate::nvme::Nvme) | an NVMe controller of the node |
//! | [`ServedDevice`] | what a block server ([`Blocks`]) has |
//! | [`CachedDevice`] | any of them behind a cache |

mod blocks;
mod cached;
mod file;
#[cfg(test)]
pub(crate) mod recorder;
mod served;
mod source;

pub use blocks::{BYTES_MAX, Blocks, PIECES_MAX, operation};
pub use cached::CachedDevice;
pub use file::FileDevice;
pub use served::{Ask, ServedDevice};
pub use source::{Source, SourceError};

use std::borrow::Cow;

use nix::errno::Errno;

/// A block, and what is to be written from there on.
pub type Piece<'a> = (u64, &'a [u8]);

/// Most bytes that are put together to be written at once.
const RUN_MAX: usize = 256 << 10;

/// Puts neighbours together that follow each other, up to a number of bytes.
fn runs<'a>(
    pieces: &'a [Piece<'a>],
    (block_size, most): (usize, usize),
) -> impl Iterator<Item = (u64, Cow<'a, [u8]>)> {
    let mut rest = pieces;
    std::iter::from_fn(move || {
        let (first, mut end, mut bytes, mut count) = (rest.first()?.0, rest[0].0, 0, 0);
        for (block, piece) in rest {
            if *block != end || count > 0 && bytes + piece.len() > most {
                break;
            }
            end += (piece.len() / block_size) as u64;
            (bytes, count) = (bytes + piece.len(), count + 1);
        }
        let (run, others) = rest.split_at(count);
        rest = others;
        Some(match run {
            [(_, piece)] => (first, Cow::Borrowed(*piece)),
            run => (
                first,
                run.iter().flat_map(|(_, piece)| *piece).copied().collect(),
            ),
        })
    })
}

/// A block device. Blocks are read and written whole.
///
/// A write may be lost, and writes may become durable in any order, until [`BlockDevice::flush`] has
/// returned.
#[expect(clippy::missing_errors_doc, reason = "said at the type of errors")]
pub trait BlockDevice {
    /// Bytes of a block: a power of 2.
    fn block_size(&self) -> usize;

    /// Number of blocks.
    fn block_count(&self) -> u64;

    /// Reads blocks from `block` on, as many as `to` has room for: a whole number.
    fn read(&mut self, block: u64, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes blocks from `block` on: a whole number.
    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), DeviceError>;

    /// Writes several pieces of whole blocks, which do not overlap, in any order: a device that can do more at once has less
    /// to wait for. Neighbours that follow each other are written together. If it fails any of them may have been written.
    fn write_each(&mut self, pieces: &[Piece<'_>]) -> Result<(), DeviceError> {
        let size = self.block_size();
        let mut runs = runs(pieces, (size, RUN_MAX));
        runs.try_for_each(|(block, bytes)| self.write(block, &bytes))
    }

    /// Returns when all that was written survives a loss of power.
    fn flush(&mut self) -> Result<(), DeviceError>;
}

impl<D: BlockDevice + ?Sized> BlockDevice for Box<D> {
    fn block_size(&self) -> usize {
        (**self).block_size()
    }

    fn block_count(&self) -> u64 {
        (**self).block_count()
    }

    fn read(&mut self, block: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read(block, to)
    }

    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), DeviceError> {
        (**self).write(block, from)
    }

    fn write_each(&mut self, pieces: &[Piece<'_>]) -> Result<(), DeviceError> {
        (**self).write_each(pieces)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        (**self).flush()
    }
}

/// What a device was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Opening it.
    Open,
    /// Reading a block.
    Read(u64),
    /// Writing a block.
    Write(u64),
    /// Flushing.
    Flush,
}

impl std::fmt::Display for Access {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open => formatter.write_str("open it"),
            Self::Read(block) => write!(formatter, "read block {block}"),
            Self::Write(block) => write!(formatter, "write block {block}"),
            Self::Flush => formatter.write_str("flush it"),
        }
    }
}

/// Failure of a block device: of an access beyond its end with [`Errno::ENXIO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {access}: {errno}")]
pub struct DeviceError {
    /// What it was to do.
    pub access: Access,
    /// Why it did not.
    pub errno: Errno,
}

/// Checks that blocks are on a device, which is what implementations begin with.
///
/// # Errors
/// [`Errno::ENXIO`] if they are beyond its end; [`Errno::EINVAL`] if they are not whole.
pub fn check(device: &impl BlockDevice, access: Access, length: usize) -> Result<(), DeviceError> {
    let fail = |errno| Err(DeviceError { access, errno });
    let (Access::Read(block) | Access::Write(block)) = access else {
        return Ok(());
    };
    if !length.is_multiple_of(device.block_size()) {
        return fail(Errno::EINVAL);
    }
    let end = block.checked_add((length / device.block_size()) as u64);
    match end {
        Some(end) if end <= device.block_count() => Ok(()),
        _ => fail(Errno::ENXIO),
    }
}

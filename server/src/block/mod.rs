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

pub use blocks::{BYTES_MAX, Blocks, operation};
pub use cached::CachedDevice;
pub use file::FileDevice;
pub use served::{Ask, ServedDevice};
pub use source::{Source, SourceError};

use nix::errno::Errno;

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

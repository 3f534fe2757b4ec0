//! The paths in front of what may be read of a request.

use nix::errno::Errno;

use crate::Request;

/// Most bytes of all paths of a request: two, and the mount point.
const PATHS_MAX: usize = 3 * 4096;

/// The paths of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Paths {
    /// Mount point.
    pub(super) mount: Vec<u8>,
    /// Path.
    pub(super) first: Vec<u8>,
    /// Second path, if the operation has one.
    pub(super) second: Vec<u8>,
    /// Where the rest begins.
    pub(super) end: u64,
}

impl Paths {
    /// Reads `count` paths and the mount point.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if they are not there, [`Errno::EFAULT`].
    pub(super) fn read(request: &Request<'_>, count: usize) -> Result<Self, Errno> {
        let whole = request.readable.min(PATHS_MAX as u64) as usize;
        let mut bytes = request.first.to_vec();
        if !has_all(&bytes, count) {
            bytes.resize(whole, 0);
            let read = request.read(0, &mut bytes).map_err(|_| Errno::EFAULT)?;
            bytes.truncate(read);
        }
        let mut parts = bytes.split(|byte| *byte == 0);
        let mut next = || parts.next().map(<[u8]>::to_vec).ok_or(Errno::EINVAL);
        if !has_all(&bytes, count) {
            return Err(Errno::EINVAL);
        }
        let (mount, first) = (next()?, next()?);
        let second = if count > 1 { next()? } else { Vec::new() };
        let lengths = [mount.len(), first.len()].into_iter().sum::<usize>() + 2;
        let more = if count > 1 { second.len() + 1 } else { 0 };
        Ok(Self {
            mount,
            first,
            second,
            end: (lengths + more) as u64,
        })
    }
}

/// Whether the bytes hold the mount point and `count` paths, each with its NUL.
fn has_all(bytes: &[u8], count: usize) -> bool {
    bytes.iter().filter(|byte| **byte == 0).count() > count
}

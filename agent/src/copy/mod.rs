//! Copying files and folders between two kernels.
//!
//! The sender [packs](pack()) them into frames of [`CopyMessage`], the receiver [unpacks](unpack())
//! them. No name and no symbolic link leads the receiver out of its target folder: it resolves each
//! below that folder by `openat2()`, which also covers links made meanwhile.

mod pack;
mod unpack;

use serde::{Deserialize, Serialize};

pub use pack::{PackError, pack, pack_part};
pub use unpack::{Target, UnpackError, unpack};

/// The bits of a file's mode that are kept: no set-user-ID, set-group-ID or sticky bit.
const MODE_BITS: u32 = 0o777;

/// A message of a copy.
///
/// The first is a file, or a folder whose content follows, each folder before its content. Paths
/// are relative to the first, whose own is empty. It may come again, before more of its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyMessage<'a> {
    /// A folder.
    Folder {
        /// Relative path.
        #[serde(borrow, with = "serde_bytes")]
        path: &'a [u8],
        /// Mode bits, as of `chmod()`.
        mode: u32,
    },
    /// A file; its content follows as [`Self::Bytes`].
    File {
        /// Relative path.
        #[serde(borrow, with = "serde_bytes")]
        path: &'a [u8],
        /// Mode bits, as of `chmod()`.
        mode: u32,
        /// Modification time, in seconds since 1970.
        modified_unix_s: i64,
    },
    /// A symbolic link.
    Link {
        /// Relative path.
        #[serde(borrow, with = "serde_bytes")]
        path: &'a [u8],
        /// Target of the link.
        #[serde(borrow, with = "serde_bytes")]
        target: &'a [u8],
    },
    /// Content of the last file.
    Bytes(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// The end of the copy, or the receiver's confirmation.
    End(Copied),
    /// The copy failed, with the error.
    Failed(&'a str),
}

/// Result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Number of devices, pipes and sockets that were skipped.
    pub skipped: u64,
}

#[cfg(test)]
mod tests;

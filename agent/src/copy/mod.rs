//! Files and folders on their way between two kernels.
//!
//! Who has them [packs](pack) them into frames of [`Parcel`], who gets them [unpacks](unpack) them.
//! No name, and no symbolic link, leads an unpacker out of the folder that it was told: it looks for
//! each below that folder by `openat2()`, so that not even links made meanwhile can.

mod pack;
mod unpack;

use serde::{Deserialize, Serialize};

pub use pack::{PackError, pack};
pub use unpack::{Target, UnpackError, unpack};

/// The bits of a file's mode that are kept: rights, but none to become another user.
const MODE_BITS: u32 = 0o777;

/// A piece of what is copied.
///
/// The first is a file, or a folder whose content follows, each folder before what is in it. Paths
/// are relative to the first, whose own is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parcel<'a> {
    /// A folder.
    Folder {
        /// Where.
        #[serde(borrow, with = "serde_bytes")]
        path: &'a [u8],
        /// The rights to it, as of `chmod()`.
        mode: u32,
    },
    /// A file, as much of it as [`Self::Bytes`] follow.
    File {
        /// Where.
        #[serde(borrow, with = "serde_bytes")]
        path: &'a [u8],
        /// The rights to it, as of `chmod()`.
        mode: u32,
        /// When it was last changed, in seconds since 1970.
        modified_unix_s: i64,
    },
    /// A symbolic link.
    Link {
        /// Where.
        #[serde(borrow, with = "serde_bytes")]
        path: &'a [u8],
        /// What it says.
        #[serde(borrow, with = "serde_bytes")]
        target: &'a [u8],
    },
    /// More of the last file.
    Bytes(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
    /// That was all, or all has been unpacked.
    End(Copied),
    /// It cannot go on, and why.
    Failed(&'a str),
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Devices, pipes and sockets that were left out.
    pub left_out: u64,
}

#[cfg(test)]
mod tests;

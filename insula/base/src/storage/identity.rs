//! Identities of files and block devices, whatever their paths.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::str::FromStr;

use nix::sys::stat::makedev;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

/// Identity of a file or block device. Its text is `file:DEVICE:INODE` or `device:NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A file: device number of its file system, and inode.
    File(u64, u64),
    /// A block device: its device number.
    Device(u64),
}

impl Identity {
    /// The identity of the file or device at that path.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::described(&fs::metadata(path)?))
    }

    /// The identity of an open file or device.
    ///
    /// # Errors
    /// The file system's error.
    pub fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::described(&file.metadata()?))
    }

    /// The identity of what a process has open, by the descriptor's path in `/proc`. Storage that may hang
    /// is not asked.
    ///
    /// # Errors
    /// There is no such descriptor.
    pub fn of_open(descriptor: &Path) -> io::Result<Self> {
        let wanted = StatxFlags::TYPE | StatxFlags::INO;
        let found = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, wanted)?;
        let number = |major: u32, minor: u32| makedev(major.into(), minor.into());
        let is_device = FileType::from_raw_mode(found.stx_mode.into()) == FileType::BlockDevice;
        Ok(match is_device {
            true => Self::Device(number(found.stx_rdev_major, found.stx_rdev_minor)),
            false => Self::File(
                number(found.stx_dev_major, found.stx_dev_minor),
                found.stx_ino,
            ),
        })
    }

    fn described(found: &Metadata) -> Self {
        match found.file_type().is_block_device() {
            true => Self::Device(found.rdev()),
            false => Self::File(found.dev(), found.ino()),
        }
    }

    /// The identity of the block device with this number, as sysfs and mountinfo write it.
    pub(super) fn numbered(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        let number = makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Self::Device(number))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(device, inode) => write!(f, "file:{device}:{inode}"),
            Self::Device(number) => write!(f, "device:{number}"),
        }
    }
}

/// A text is not that of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it identifies no file")]
pub struct NoIdentity;

impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<Self, NoIdentity> {
        let number = |text: &str| text.parse().map_err(|_| NoIdentity);
        match text.split(':').collect::<Vec<_>>()[..] {
            ["file", device, inode] => Ok(Self::File(number(device)?, number(inode)?)),
            ["device", device] => Ok(Self::Device(number(device)?)),
            _ => Err(NoIdentity),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn an_identity_has_a_text() {
        for identity in [Identity::File(2049, u64::MAX), Identity::Device(0x700)] {
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
        for text in ["", "file", "file:1", "file:1:2:3", "device:x", "1:2"] {
            assert_eq!(text.parse::<Identity>(), Err(NoIdentity), "{text}");
        }
    }

    #[test]
    fn a_renamed_file_keeps_its_identity() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        let file = File::create(&one).unwrap();
        fs::rename(&one, &other).unwrap();
        File::create(&one).unwrap();
        let open = Identity::of_file(&file).unwrap();
        let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(open, Identity::of_open(Path::new(&descriptor)).unwrap());
        assert_eq!(open, Identity::of(&other).unwrap());
        assert_ne!(open, Identity::of(&one).unwrap());
    }
}

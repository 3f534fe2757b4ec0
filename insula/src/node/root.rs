//! What can be a node's root.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use insula_agent::options;

use super::{RootImage, RootImageError};
use crate::virtio::{DiskError, DiskFile, DiskSpec, FolderError, SharedFolder};

/// Where ext4's superblock has its magic number (`s_magic` of fs/ext4/ext4.h), and the number.
const EXT4_MAGIC_AT: u64 = 1024 + 0x38;
const EXT4_MAGIC: [u8; 2] = 0xef53_u16.to_le_bytes();

/// A node's root.
#[derive(Clone, Debug)]
pub enum Root {
    /// A folder of the base.
    Folder(SharedFolder),
    /// An image, in memory once for all nodes that have it.
    Image(RootImage),
    /// An ext4 file system that fills a file or block device: the node's first disk.
    Disk(DiskFile),
}

/// Why something cannot be a node's root. Nothing was touched.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The folder cannot.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The image cannot.
    #[error(transparent)]
    Image(#[from] RootImageError),
    /// The disk cannot.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Root {
    /// What is at that path: a folder, a file that is an EROFS image, or a file or block device that is
    /// an ext4 file system. What lies below an overlay is not written to.
    ///
    /// # Errors
    /// [`RootError`].
    pub fn find(path: &Path, overlay: bool) -> Result<Self, RootError> {
        let kind = fs::metadata(path).map(|found| found.file_type());
        let is_device = kind.as_ref().is_ok_and(FileTypeExt::is_block_device);
        if !is_device && !kind.is_ok_and(|kind| kind.is_file()) {
            return Ok(Self::Folder(SharedFolder::find(path)?));
        }
        if is_ext4(path) {
            return Ok(Self::Disk(DiskFile::find(&DiskSpec {
                path: path.to_owned(),
                read_only: overlay,
            })?));
        }
        if is_device {
            return Err(RootImageError::NoImage(path.to_owned()).into());
        }
        Ok(Self::Image(RootImage::find(path)?))
    }

    /// The folder, if it is one.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder.path()),
            Self::Image(_) | Self::Disk(_) => None,
        }
    }

    /// The image, if it is one.
    #[must_use]
    pub fn image(&self) -> Option<&RootImage> {
        match self {
            Self::Image(image) => Some(image),
            Self::Folder(_) | Self::Disk(_) => None,
        }
    }

    /// The disk, if it is one.
    #[must_use]
    pub fn disk(&self) -> Option<&DiskFile> {
        match self {
            Self::Disk(disk) => Some(disk),
            Self::Folder(_) | Self::Image(_) => None,
        }
    }

    /// Where it is in the base, if it is there as long as the node is.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        let disk = self.disk().map(|disk| disk.path.as_path());
        self.folder().or(disk)
    }

    /// All disks of a node: its root, if that is one, before the others.
    #[must_use]
    pub fn before(root: Option<&Self>, others: Vec<DiskFile>) -> Vec<DiskFile> {
        let own = root.and_then(Self::disk).cloned();
        own.into_iter().chain(others).collect()
    }

    /// What an agent is told of it. What is changed in an image stays in the node in any case.
    #[must_use]
    pub fn for_agent(&self, overlay: bool) -> options::Root {
        match (self, overlay) {
            (Self::Image(_), _) => options::Root::Memory,
            (Self::Folder(_), true) => options::Root::Overlay,
            (Self::Folder(_), false) => options::Root::Files,
            (Self::Disk(_), true) => options::Root::DiskOverlay,
            (Self::Disk(_), false) => options::Root::Disk,
        }
    }
}

/// Whether an ext4 file system (or one of its forerunners, which its driver takes as well) begins
/// there. Of what cannot be read whoever opens it next tells.
fn is_ext4(path: &Path) -> bool {
    let mut magic = [0; EXT4_MAGIC.len()];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut magic, EXT4_MAGIC_AT));
    read.is_ok() && magic == EXT4_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ext4_file_system_is_known_by_its_magic() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image");
        let mut bytes = vec![0; 4096];
        fs::write(&file, &bytes).unwrap();
        assert!(!is_ext4(&file) && !is_ext4(folder.path()));
        bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
        fs::write(&file, &bytes).unwrap();
        assert!(is_ext4(&file));
        fs::write(&file, &bytes[..1081]).unwrap();
        assert!(!is_ext4(&file));
    }

    #[test]
    fn a_root_is_the_first_disk() {
        let [own, other] = ["/own", "/other"].map(|path| DiskFile {
            path: path.into(),
            read_only: false,
            is_device: Some(false),
        });
        let root = Root::Disk(own.clone());
        let all = Root::before(Some(&root), vec![other.clone()]);
        assert_eq!(all, [own, other.clone()]);
        assert_eq!(Root::before(None, vec![other.clone()]), [other]);
    }
}

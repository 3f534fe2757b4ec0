//! A node's root file system.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use insula_agent::options;
use insula_base::error::Error;

use super::RootImage;
use super::root_image;
use crate::attachment::{DiskFile, DiskSpec, SharedFolder};

/// Offset and value of the magic number in ext4's superblock (`s_magic` of fs/ext4/ext4.h).
const EXT4_MAGIC_OFFSET: u64 = 1024 + 0x38;
const EXT4_MAGIC: [u8; 2] = 0xef53_u16.to_le_bytes();

/// A node's root.
#[derive(Clone, Debug)]
pub enum Root {
    /// A folder of the base.
    Folder(SharedFolder),
    /// An EROFS image, in memory once for all nodes that use it.
    Image(RootImage),
    /// A file or block device with an ext4 file system: the node's first disk.
    Disk(DiskFile),
}

impl Root {
    /// The root at `path`: a folder, an EROFS image, or a file or block device with ext4. Below an
    /// overlay it is read-only.
    ///
    /// # Errors
    /// Why it cannot be; nothing was touched.
    pub fn find(path: &Path, overlay: bool) -> Result<Self, Error> {
        let kind = fs::metadata(path).map(|found| found.file_type());
        let is_device = kind.as_ref().is_ok_and(FileTypeExt::is_block_device);
        if !is_device && !kind.is_ok_and(|kind| kind.is_file()) {
            return Ok(Self::Folder(SharedFolder::find(path)?));
        }
        if is_ext4(path) {
            let spec = DiskSpec {
                path: path.to_owned(),
                read_only: overlay,
            };
            let disk = DiskFile::find(&spec);
            return Ok(Self::Disk(disk.map_err(|error| error.about("rootfs"))?));
        }
        if is_device {
            return Err(root_image::no_image(path));
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

    /// Its path on the base, if the node uses it while it runs.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        let disk = self.disk().map(|disk| disk.path.as_path());
        self.folder().or(disk)
    }

    /// All disks of a node: its root, if that is a disk, before the others.
    #[must_use]
    pub fn before(root: Option<&Self>, others: Vec<DiskFile>) -> Vec<DiskFile> {
        let own = root.and_then(Self::disk).cloned();
        own.into_iter().chain(others).collect()
    }

    /// The agent's option for it. Changes to an image stay in the node's memory in any case.
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

/// Whether the file has an ext4 file system, or ext2 or ext3, which its driver mounts as well. A
/// read error is reported by the next open.
fn is_ext4(path: &Path) -> bool {
    let mut magic = [0; EXT4_MAGIC.len()];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut magic, EXT4_MAGIC_OFFSET));
    read.is_ok() && magic == EXT4_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_is_recognized_by_its_magic() {
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
            base: None,
        });
        let root = Root::Disk(own.clone());
        let all = Root::before(Some(&root), vec![other.clone()]);
        assert_eq!(all, [own, other.clone()]);
        assert_eq!(Root::before(None, vec![other.clone()]), [other]);
    }
}

//! Root file systems in memory, shared by nodes.
//!
//! An EROFS image is read into memory once, and each node that has it as its root maps that memory:
//! its kernel reads files, and runs programs, in place (DAX). The memory is freed with the last of
//! these nodes.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use insula_abi as abi;
use insula_base::error::{Error, Source};
use insula_base::root::Root;
use insula_base::state::{self, Lock};
use insula_base::units::Size;
use insula_boot::persistent::{self, HEAD_SIZE};
use insula_driver::{Driver, Memory, Node};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate as node;

/// Offset (`EROFS_SUPER_OFFSET`) and value of the magic number of an EROFS image.
const MAGIC_OFFSET: u64 = 1024;
const MAGIC: [u8; 4] = 0xe0f5_e1e2_u32.to_le_bytes();

/// Identity of the file of an image in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct RootImageRecord {
    /// Its path, absolute.
    pub path: PathBuf,
    /// Device of the file.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of its last change, in nanoseconds since 1970.
    pub changed_unix_ns: i128,
}

/// A file with an EROFS image.
#[derive(Clone, Debug)]
pub struct RootImage {
    file: Arc<File>,
    record: RootImageRecord,
}

impl RootImage {
    /// Opens the image at `path`.
    ///
    /// # Errors
    /// Why it cannot be a root; nothing was kept.
    pub fn find(path: &Path) -> Result<Self, Error> {
        let failed = |error| unreadable(path, error);
        let path = path.canonicalize().map_err(failed)?;
        let file = File::open(&path).map_err(failed)?;
        let mut magic = MAGIC.map(|byte| !byte);
        let read = file.read_exact_at(&mut magic, MAGIC_OFFSET);
        match read {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(failed(error));
            }
            _ if magic != MAGIC => return Err(no_image(&path)),
            _ => {}
        }
        let found = file.metadata().map_err(failed)?;
        let changed_s = i128::from(found.ctime()) * 1_000_000_000;
        let record = RootImageRecord {
            path,
            device: found.dev(),
            inode: found.ino(),
            size: found.len(),
            changed_unix_ns: changed_s + i128::from(found.ctime_nsec()),
        };
        let file = Arc::new(file);
        Ok(Self { file, record })
    }

    /// The file's identity.
    #[must_use]
    pub fn record(&self) -> &RootImageRecord {
        &self.record
    }

    /// The image in memory, from a node that already has it, or read now. Holds a lock until it is
    /// shared with a node or dropped.
    pub(super) fn share(&self, driver: &Driver) -> Result<SharedImage, Error> {
        // Not the file itself, which may be a node's disk as well. Without the lock, two commands
        // may read the image twice.
        let name = format!("root-image-{}-{}", self.record.device, self.record.inode);
        let lock = state::lock(&Root::default(), &name).ok();
        let memory = match self.find_in_nodes(driver)? {
            Some(memory) => memory,
            None => self.read(driver)?,
        };
        Ok(SharedImage {
            chunks: memory.chunks().map_err(module_failed)?,
            memory,
            _lock: lock,
        })
    }

    fn find_in_nodes(&self, driver: &Driver) -> Result<Option<Memory>, Error> {
        let nodes = node::all(driver)?.into_iter();
        let mut with = nodes.filter(|handle| {
            let record = handle.record.as_ref();
            record.is_some_and(|record| record.root_image.as_ref() == Some(&self.record))
        });
        // A node that is being created, or was removed meanwhile, does not have it.
        Ok(with.find_map(|handle| handle.node.shared().ok()))
    }

    fn read(&self, driver: &Driver) -> Result<Memory, Error> {
        let size = HEAD_SIZE.saturating_add(self.record.size);
        let size = size.next_multiple_of(abi::GRANULE);
        let no_memory = || no_memory(&self.record.path, Size(size));
        let memory = driver.create_memory().map_err(module_failed)?;
        let request = abi::Request {
            size,
            min_phys: abi::GRANULE,
            max_phys: 0,
            chunk_max: 0,
            numa_node: abi::NUMA_ANY,
            flags: 0,
        };
        memory.grow(&request).map_err(|error| match error.errno {
            Errno::ENOMEM | Errno::EBUSY => no_memory(),
            _ => module_failed(error),
        })?;
        let chunks = memory.chunks().map_err(module_failed)?;
        let start = chunks.first().map_or(0, |chunk| chunk.start);
        if !is_one_piece(&chunks) {
            return Err(no_memory());
        }
        let mut mapping = memory.map().map_err(module_failed)?;
        let failed = |error| unreadable(&self.record.path, error);
        mapping
            .write_at(start, &persistent::head(size))
            .map_err(|error| failed(io::Error::other(error)))?;
        mapping
            .read_file_at(start + HEAD_SIZE, &self.file, self.record.size)
            .map_err(failed)?;
        Ok(memory)
    }
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    refused(format!("the root image {} cannot be read", path.display()))
        .because(error)
        .nothing_kept()
}

/// The error of a file that is no root at all.
pub(super) fn no_image(path: &Path) -> Error {
    let path = path.display();
    refused(format!(
        "{path} is neither a folder nor an EROFS image nor an ext4 file system"
    ))
    .untouched()
    .hint("`mkfs.erofs -Enoinline_data IMAGE FOLDER` makes an image of a folder")
}

/// Not enough contiguous memory is free.
fn no_memory(path: &Path, size: Size) -> Error {
    refused(format!(
        "{size} of contiguous memory for the root image {} could not be allocated",
        path.display()
    ))
    .nothing_kept()
    .hint(
        "make it smaller, or reserve memory early after boot with `insula machine reserve --memory`",
    )
}

fn module_failed(error: impl Into<Source>) -> Error {
    Error::new("the module failed")
        .because(error)
        .nothing_kept()
}

fn refused(what: String) -> Error {
    Error::new(what).about("rootfs")
}

/// Whether the chunks are contiguous in memory in the order of their object: a node's kernel makes
/// one disk of each range.
fn is_one_piece(chunks: &[abi::Chunk]) -> bool {
    chunks
        .windows(2)
        .all(|pair| pair[0].start + pair[0].size == pair[1].start)
}

/// An image in memory, for a node that is being created.
#[derive(Debug)]
pub(super) struct SharedImage {
    /// Its memory.
    pub(super) chunks: Vec<abi::Chunk>,
    memory: Memory,
    _lock: Option<Lock>,
}

impl SharedImage {
    /// Shares it with a node and its devices.
    pub(super) fn share_with(&self, node: &Node) -> Result<(), Error> {
        node.share(&self.memory).map_err(module_failed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn images_are_recognized_by_their_magic() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut bytes = vec![0; 4096];
        fs::write(at("zeros"), &bytes).unwrap();
        fs::write(at("short"), "short").unwrap();
        bytes[1024..1028].copy_from_slice(&[0xe2, 0xe1, 0xf5, 0xe0]);
        fs::write(at("image"), &bytes).unwrap();
        let image = RootImage::find(&at("image")).unwrap();
        assert_eq!(image.record().size, 4096);
        for other in ["zeros", "short"] {
            let refused = RootImage::find(&at(other)).unwrap_err();
            assert_eq!(refused.what, no_image(&at(other)).what);
        }
        let none = RootImage::find(&at("none")).unwrap_err();
        assert!(none.what.ends_with("cannot be read"), "{none}");
    }

    #[test]
    fn a_changed_file_is_another_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut bytes = vec![0; 2048];
        bytes[1024..1028].copy_from_slice(&MAGIC);
        fs::write(&path, &bytes).unwrap();
        let known = |path: &Path| RootImage::find(path).unwrap().record().clone();
        let before = known(&path);
        assert_eq!(known(&path), before);
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(
            serde_json::from_str::<RootImageRecord>(&text).unwrap(),
            before
        );
        fs::write(&path, [&bytes[..], b"more"].concat()).unwrap();
        assert_ne!(known(&path), before);
    }

    #[test]
    fn contiguous_chunks_are_one_piece() {
        let chunk = |start, size| abi::Chunk { start, size };
        assert!(is_one_piece(&[chunk(4, 2), chunk(6, 1), chunk(7, 1)]));
        assert!(!is_one_piece(&[chunk(6, 1), chunk(4, 2)]));
        assert!(!is_one_piece(&[chunk(4, 2), chunk(8, 1)]));
    }
}

//! Disks of copies: the content of the original's at the time of the snapshot, and what each copy has
//! written since.
//!
//! Both are files in a folder of the command's own, with names of their own. A file belongs to the image
//! or the node whose description names it: [`remove_unused`](DiskStore::remove_unused) removes all
//! others, such as those of a killed command, or of an earlier boot of the base. They are not synced to
//! the base's disk, since images and nodes do not outlive the base either.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state::{self, Lock};
use insula_base::storage::Identity;
use insula_base::units::Size;
use insula_driver::name::Name;
use insula_image::SnapshotDisk;
use nix::sys::statvfs::statvfs;
use tempfile::{Builder, NamedTempFile, TempPath};

use super::file_copy::{copy_sparse, reflink};
use super::qcow2::empty_overlay;
use super::{DiskFile, DiskSpec};

const FOLDER: &str = "/var/lib/insula/disks";
/// Name of the lock of those who add files, which they share, and of those who remove them.
const LOCK: &str = "disks";
/// Unit of the system's block counts in bytes.
const BLOCK: u64 = 512;

/// The folder, to which files can be added: none is removed meanwhile.
#[derive(Debug)]
pub(crate) struct DiskStore {
    folder: PathBuf,
    _lock: Lock,
}

impl DiskStore {
    /// Opens the folder, and makes it if there is none.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn open(root: &Root) -> Result<Self, Error> {
        let folder = root.path(FOLDER);
        let open = || {
            let lock = state::lock_shared(root, LOCK)?;
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)?;
            Ok(lock)
        };
        let lock = open().map_err(|source: io::Error| {
            Error::new(format!("the folder {} cannot be used", folder.display()))
                .because(source)
                .untouched()
        })?;
        Ok(Self {
            folder,
            _lock: lock,
        })
    }

    /// Checks that the contents of these disks can be kept.
    ///
    /// # Errors
    /// When there is no room for them; nothing is left behind.
    pub(crate) fn check_room(&self, disks: &[DiskFile]) -> Result<(), Error> {
        let needed = self.needed(disks).map_err(|error| self.failed(error))?;
        let found = statvfs(&self.folder).map_err(|error| self.failed(error.into()))?;
        let free = found
            .blocks_available()
            .saturating_mul(found.fragment_size());
        match needed > free {
            true => Err(self.no_room(Size(needed), Size(free))),
            false => Ok(()),
        }
    }

    /// Bytes of the disks that a reflink cannot share.
    fn needed(&self, disks: &[DiskFile]) -> io::Result<u64> {
        let mut needed = 0_u64;
        for disk in disks {
            let from = File::open(&disk.path)?;
            if !reflink(&from, self.new_file("room", "")?.as_file())? {
                needed = needed.saturating_add(from.metadata()?.blocks().saturating_mul(BLOCK));
            }
        }
        Ok(needed)
    }

    /// Keeps the present content of a disk, which is that of the file `served` and must not change
    /// meanwhile.
    ///
    /// # Errors
    /// When it cannot be, or another file is at the disk's path; nothing is left behind.
    pub(crate) fn keep_content(
        &self,
        disk: &DiskFile,
        served: Identity,
        image: &Name,
    ) -> Result<TempPath, Error> {
        let from = open_served(disk, served)?;
        let copy = || {
            let to = self.new_file(image.as_str(), ".raw")?;
            if !reflink(&from, to.as_file())? {
                copy_sparse(&from, to.as_file())?;
            }
            Ok(to.into_temp_path())
        };
        copy().map_err(|source: io::Error| not_copied(disk).because(source))
    }

    /// A new overlay over such a content.
    fn overlay(&self, base: &Path, image: &Name) -> io::Result<TempPath> {
        let size = fs::metadata(base)?.len();
        let mut file = self.new_file(image.as_str(), ".qcow2")?;
        file.write_all(&empty_overlay(base, size)?)?;
        Ok(file.into_temp_path())
    }

    fn new_file(&self, name: &str, suffix: &str) -> io::Result<NamedTempFile> {
        Builder::new()
            .prefix(&format!("{name}-"))
            .suffix(suffix)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(&self.folder)
    }

    /// Removes all files but the used ones, unless files are being added. A failure leaves them for the
    /// next time.
    pub(crate) fn remove_unused(root: &Root, used: impl FnOnce() -> Option<BTreeSet<PathBuf>>) {
        let folder = root.path(FOLDER);
        let is_empty = || {
            folder
                .read_dir()
                .map_or(true, |mut all| all.next().is_none())
        };
        if is_empty() {
            return;
        }
        let Ok(Some(_lock)) = state::try_lock(root, LOCK) else {
            return;
        };
        // Read after the lock was taken: what has been added is used by now.
        let Some(used) = used() else {
            return;
        };
        for entry in folder.read_dir().into_iter().flatten().flatten() {
            if !used.contains(&entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn failed(&self, source: io::Error) -> Error {
        let folder = self.folder.display();
        Error::new(format!("no disk can be copied to {folder}"))
            .because(source)
            .untouched()
    }

    fn no_room(&self, needed: Size, free: Size) -> Error {
        let folder = self.folder.display();
        Error::new(format!(
            "{folder} has {free} free, but the node's disks have {needed}"
        ))
        .untouched()
        .hint(
            "free some, or have the disks and this folder on one XFS or Btrfs: there copies share",
        )
    }
}

/// Opens a disk's file, which is `served`: it may have been moved or replaced since the node began with it.
///
/// # Errors
/// When it was, or cannot be opened.
pub(crate) fn open_served(disk: &DiskFile, served: Identity) -> Result<File, Error> {
    let open = || -> io::Result<_> {
        let file = File::open(&disk.path)?;
        Ok((Identity::of_file(&file)?, file))
    };
    match open() {
        Ok((found, file)) if found == served => Ok(file),
        Ok(_) => Err(not_copied(disk)
            .because("another file is at its path than the node uses")
            .hint("move the node's own file back, or stop the node")),
        Err(source) => Err(not_copied(disk).because(source)),
    }
}

fn not_copied(disk: &DiskFile) -> Error {
    let path = disk.path.display();
    Error::new(format!("the disk {path} could not be copied")).nothing_kept()
}

/// The disks of a copy that is being started; its own are removed unless they are kept.
#[derive(Debug)]
pub(crate) struct CopiedDisks {
    /// All of them, in order.
    pub(crate) disks: Vec<DiskFile>,
    overlays: Vec<TempPath>,
    _store: Option<DiskStore>,
}

impl CopiedDisks {
    /// Makes overlays over the contents that belong to the snapshot `image`, and looks up the disks that
    /// are only read.
    ///
    /// # Errors
    /// When one cannot be used; nothing is left behind.
    pub(crate) fn make(root: &Root, image: &Name, disks: &[SnapshotDisk]) -> Result<Self, Error> {
        let mut made = Self {
            disks: Vec::new(),
            overlays: Vec::new(),
            _store: None,
        };
        if disks.is_empty() {
            return Ok(made);
        }
        let store = DiskStore::open(root)?;
        for disk in disks {
            let own = match disk.read_only {
                true => DiskFile::find(&DiskSpec {
                    path: disk.path.clone(),
                    read_only: true,
                })?,
                false => made.add_overlay(&store, image, &disk.path)?,
            };
            made.disks.push(own);
        }
        made._store = Some(store);
        Ok(made)
    }

    fn add_overlay(
        &mut self,
        store: &DiskStore,
        image: &Name,
        base: &Path,
    ) -> Result<DiskFile, Error> {
        super::find_storage_daemon()?;
        let overlay = store.overlay(base, image).map_err(|source| {
            let base = base.display();
            Error::new(format!("the copy cannot have an overlay over {base}"))
                .because(source)
                .nothing_kept()
        })?;
        let disk = DiskFile {
            path: overlay.to_path_buf(),
            read_only: false,
            is_device: Some(false),
            base: Some(base.to_owned()),
        };
        self.overlays.push(overlay);
        Ok(disk)
    }

    /// Keeps the files: they belong to a node now.
    pub(crate) fn keep(self) {
        keep(self.overlays);
    }
}

/// Keeps files that belong to an image or a node now.
pub(crate) fn keep(files: Vec<TempPath>) {
    for file in files {
        // Fails only where files are marked as temporary.
        let _ = file.keep();
    }
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    fn disk(path: &Path) -> DiskFile {
        DiskFile {
            path: path.to_owned(),
            read_only: false,
            is_device: Some(false),
            base: None,
        }
    }

    /// The file that a node uses which begins now.
    fn served(disk: &DiskFile) -> Identity {
        Identity::of_file(&File::open(&disk.path).unwrap()).unwrap()
    }

    /// A file that took the place of the node's own is not its content.
    #[test]
    fn a_file_that_was_replaced_is_not_copied() {
        let tree = Tree::new(&[("/disk", "content"), ("/other", "of another")]);
        let root = tree.root();
        let store = DiskStore::open(&root).unwrap();
        let (disk, image) = (disk(&root.path("/disk")), "ready".parse().unwrap());
        let own = served(&disk);
        fs::rename(&disk.path, root.path("/away")).unwrap();
        let keep = || store.keep_content(&disk, own, &image);
        keep().unwrap_err();
        fs::rename(root.path("/other"), &disk.path).unwrap();
        let refused = keep().unwrap_err();
        assert!(refused.to_string().contains("/disk"), "{refused}");
        fs::rename(root.path("/away"), &disk.path).unwrap();
        assert_eq!(fs::read_to_string(keep().unwrap()).unwrap(), "content");
        assert_eq!(files(&tree), 0, "nothing is left behind");
    }

    fn files(tree: &Tree) -> usize {
        tree.root().path(FOLDER).read_dir().unwrap().count()
    }

    #[test]
    fn files_stay_while_somebody_uses_them() {
        let tree = Tree::new(&[("/disk", "content")]);
        let root = tree.root();
        let store = DiskStore::open(&root).unwrap();
        let disk = disk(&root.path("/disk"));
        store.check_room(std::slice::from_ref(&disk)).unwrap();
        let image = "ready".parse().unwrap();
        let kept = store.keep_content(&disk, served(&disk), &image).unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "content");
        let path = kept.to_path_buf();
        keep(vec![kept]);
        DiskStore::remove_unused(&root, || Some(BTreeSet::new()));
        assert_eq!(files(&tree), 1, "files are being added");
        drop(store);
        DiskStore::remove_unused(&root, || None);
        DiskStore::remove_unused(&root, || Some(BTreeSet::from([path])));
        assert_eq!(files(&tree), 1, "it is used");
        DiskStore::remove_unused(&root, || Some(BTreeSet::new()));
        assert_eq!(files(&tree), 0);
    }

    #[test]
    fn what_is_not_kept_is_gone() {
        let tree = Tree::new(&[("/disk", "content")]);
        let root = tree.root();
        let store = DiskStore::open(&root).unwrap();
        let image = "ready".parse().unwrap();
        let overlay = store.overlay(&root.path("/disk"), &image).unwrap();
        assert_eq!(files(&tree), 1);
        drop(overlay);
        let disk = disk(&root.path("/disk"));
        drop(store.keep_content(&disk, served(&disk), &image).unwrap());
        assert!(store.overlay(&root.path("/none"), &image).is_err());
        assert_eq!(files(&tree), 0);
    }
}

//! Files and block devices of the base as disks of a node.

use std::convert::Infallible;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_base::serde_as_text;
use insula_base::storage::{Lock, LockError, Medium, uses};
use serde::{Deserialize, Serialize};

/// Name of the program that serves disks: QEMU's storage daemon.
const STORAGE_DAEMON: &str = "qemu-storage-daemon";
/// Suffix of a read-only disk.
const READ_ONLY: &str = ",ro";

/// A disk as given by the user: `FILE[,ro]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The file or block device behind it.
    pub path: PathBuf,
    /// Whether the node must not write to it.
    pub read_only: bool,
}

impl FromStr for DiskSpec {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let path = text.strip_suffix(READ_ONLY);
        Ok(Self {
            path: path.unwrap_or(text).into(),
            read_only: path.is_some(),
        })
    }
}

impl fmt::Display for DiskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.read_only { READ_ONLY } else { "" };
        write!(f, "{}{end}", self.path.display())
    }
}

serde_as_text!(DiskSpec, "^.+$");

/// A file or block device of the base that is a node's disk: in raw format, or as an overlay (qcow2)
/// that has what was written over another file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DiskFile {
    /// Its path, absolute.
    pub path: PathBuf,
    /// Whether the node must not write to it.
    #[serde(default)]
    pub read_only: bool,
    /// Whether it is a block device. Recorded, since a later query could hang if the storage is
    /// gone. `None` in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_device: Option<bool>,
    /// Of an overlay: the file below, in raw format, which is only read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<PathBuf>,
}

impl DiskFile {
    /// Checks the file of `spec`.
    ///
    /// # Errors
    /// Why it cannot be a disk; nothing was touched.
    pub fn find(spec: &DiskSpec) -> Result<Self, Error> {
        let DiskSpec { path, read_only } = spec;
        let no_file = |source| no_file(path, source);
        let found = path.canonicalize().map_err(no_file)?;
        let kind = fs::metadata(&found).map_err(no_file)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(no_disk(&found));
        }
        let opened = OpenOptions::new().read(true).write(!read_only).open(&found);
        opened.map_err(no_file)?;
        if found.to_str().is_none() {
            return Err(no_file(io::ErrorKind::InvalidFilename.into()));
        }
        refuse_used(&Root::default(), &found, *read_only)?;
        find_storage_daemon()?;
        Ok(Self {
            path: found,
            read_only: *read_only,
            is_device: Some(kind.is_block_device()),
            base: None,
        })
    }

    /// Checks that the node's supervisor will be able to lock it.
    ///
    /// # Errors
    /// Why it cannot be locked; nothing was touched.
    pub fn check(&self) -> Result<(), Error> {
        let locked = Lock::take(&self.path, self.read_only);
        locked.map(drop).map_err(|error| match error {
            LockError::Busy => busy(&self.path),
            LockError::Open(source) => no_file(&self.path, source),
        })
    }

    /// Whether it is a block device, as far as its record says.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.is_device != Some(false)
    }

    /// Whether both share storage and one of them is writable.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let medium = |disk: &Self| Medium::of(&Root::default(), &disk.path);
        let is_one = || match (medium(self), medium(other)) {
            (Ok(one), Ok(two)) => one.overlaps(&two),
            _ => false,
        };
        !(self.read_only && other.read_only) && (self.path == other.path || is_one())
    }
}

/// Refuses a disk that the base writes to, and a writable disk that the base uses at all.
fn refuse_used(root: &Root, path: &Path, read_only: bool) -> Result<(), Error> {
    let failed = |source| no_file(path, source);
    let mut uses = uses(root, &Medium::of(root, path).map_err(failed)?);
    uses.retain(|one| one.writes || !read_only);
    if uses.is_empty() {
        return Ok(());
    }
    let words: Vec<_> = uses.into_iter().map(|one| one.what).collect();
    Err(in_use(path, &words.join(", ")))
}

/// Finds the program that serves disks.
///
/// # Errors
/// It is not installed.
pub fn find_storage_daemon() -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(STORAGE_DAEMON));
    found
        .find(|file| file.is_file())
        .ok_or_else(no_storage_daemon)
}

/// It does not exist, or cannot be read or written.
fn no_file(path: &Path, error: io::Error) -> Error {
    refused(path, "cannot be a node's disk").because(error)
}

fn no_disk(path: &Path) -> Error {
    refused(
        path,
        "cannot be a node's disk: it is neither a file nor a block device",
    )
}

fn in_use(path: &Path, uses: &str) -> Error {
    let why = format!("cannot be a node's disk: this system has it {uses}");
    refused(path, &why).hint(
        "end that use first, or take a copy: two kernels that change one file system destroy it",
    )
}

fn busy(path: &Path) -> Error {
    refused(path, "cannot be a node's disk: another program uses it")
        .with_kind(Kind::Unavailable)
        .hint("`lsof` and `lslocks` show which; read-only disks can be shared: append `,ro`")
}

fn refused(path: &Path, why: &str) -> Error {
    let what = format!("{} {why}", path.display());
    Error::new(what).untouched().about("disk")
}

fn no_storage_daemon() -> Error {
    Error::new("there is no qemu-storage-daemon")
        .untouched()
        .about("disk")
        .hint("install it: package `qemu-system-common` on Debian")
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    #[test]
    fn disk_specs_are_parsed() {
        let spec = |text: &str| {
            let DiskSpec { path, read_only } = text.parse().unwrap();
            (path.to_str().unwrap().to_owned(), read_only)
        };
        assert_eq!(spec("/a"), ("/a".into(), false));
        assert_eq!(spec("/a,b,ro"), ("/a,b".into(), true));
        assert_eq!(spec("/a,rox"), ("/a,rox".into(), false));
    }

    #[test]
    fn what_is_neither_file_nor_block_device_is_refused() {
        let find = |path: &str| {
            let spec: DiskSpec = path.parse().unwrap();
            DiskFile::find(&spec)
        };
        let refusal = |path: &str| find(path).unwrap_err().failure();
        let why = "cannot be a node's disk: No such file or directory";
        assert_eq!(refusal("/none"), format!("/none {why}"));
        for path in ["/tmp", "/dev/null"] {
            assert_eq!(refusal(path), no_disk(Path::new(path)).what);
        }
    }

    #[test]
    fn what_the_base_uses_is_refused() {
        let tree = Tree::new(&[
            ("/disk", ""),
            (
                "/proc/self/mountinfo",
                "25 1 0:44 / /a rw - erofs /disk ro\n",
            ),
        ]);
        let root = tree.root();
        let refused = refuse_used(&root, &root.path("/disk"), false).unwrap_err();
        assert!(refused.to_string().contains("mounted at /a"), "{refused}");
        refuse_used(&root, &root.path("/disk"), true).unwrap();
    }

    #[test]
    fn one_file_by_two_names_is_one_disk() {
        let folder = tempfile::tempdir().unwrap();
        let disk = |name: &str, read_only| DiskFile {
            path: folder.path().join(name),
            read_only,
            is_device: Some(false),
            base: None,
        };
        let (one, again) = (disk("one", false), disk("again", true));
        fs::write(&one.path, "bytes").unwrap();
        fs::hard_link(&one.path, &again.path).unwrap();
        assert!(one.conflicts_with(&again) && !again.conflicts_with(&disk("one", true)));
        let locked = Lock::take(&again.path, true).unwrap();
        assert_eq!(one.check().unwrap_err().what, busy(&one.path).what);
        drop(locked);
        one.check().unwrap();
    }
}

//! Media: the bytes behind a path.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use nix::sys::stat::{major, minor};

use super::identity::Identity;
use crate::root::Root;

/// Block devices by number in sysfs.
const BY_NUMBER: &str = "/sys/dev/block";

/// A file or block device, and all layers below it with the same bytes: the disk of a partition,
/// the file of a loop device, the members of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Medium {
    pub(super) own: Identity,
    below: BTreeSet<Identity>,
}

impl Medium {
    /// The medium at `path`.
    ///
    /// # Errors
    /// The file system's error.
    pub fn of(root: &Root, path: &Path) -> io::Result<Self> {
        Ok(Self::identified(root, Identity::of(path)?))
    }

    pub(super) fn identified(root: &Root, own: Identity) -> Self {
        let mut below = BTreeSet::new();
        let mut next = vec![own];
        while let Some(identity) = next.pop() {
            let parts = parts(root, identity).into_iter();
            // Visits each once, so that the loop ends whatever sysfs says.
            next.extend(parts.filter(|part| *part != own && below.insert(*part)));
        }
        Self { own, below }
    }

    /// Whether both are the same medium, or one is a part of the other.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.own == other.own || self.is_above(other) || other.is_above(self)
    }

    /// Whether this medium has the bytes of `other` through another layer.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        self.below.contains(&other.own)
    }
}

/// The layers directly below.
fn parts(root: &Root, identity: Identity) -> Vec<Identity> {
    let Identity::Device(number) = identity else {
        return Vec::new();
    };
    let folder = format!("{BY_NUMBER}/{}:{}", major(number), minor(number));
    let numbered = |path: String| Identity::numbered(&root.text(&path).ok()?);
    let mut parts = Vec::new();
    if root.exists(&format!("{folder}/partition")) {
        let real = root.path(&folder).canonicalize().ok();
        let disk = real.and_then(|real| fs::read_to_string(real.parent()?.join("dev")).ok());
        parts.extend(disk.and_then(|disk| Identity::numbered(disk.trim())));
    }
    parts.extend(loop_file(root, &folder));
    let slaves = format!("{folder}/slaves");
    let names = root.names(&slaves).into_iter();
    parts.extend(names.filter_map(|name| numbered(format!("{slaves}/{name}/dev"))));
    parts
}

/// The backing file of a loop device, by its folder in sysfs.
pub(super) fn loop_file(root: &Root, folder: &str) -> Option<Identity> {
    let path = root.text(&format!("{folder}/loop/backing_file")).ok()?;
    // A deleted file has no name that a user could give.
    Identity::of(&root.path(&path)).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::root::fake::Tree;

    fn device(text: &str) -> Identity {
        Identity::numbered(text).unwrap()
    }

    /// A disk with two partitions, a volume over the second, a loop device over a file.
    fn machine() -> Tree {
        let tree = Tree::new(&[
            ("/sys/devices/sda/dev", "8:0\n"),
            ("/sys/devices/sda/sda1/dev", "8:1\n"),
            ("/sys/devices/sda/sda1/partition", "1\n"),
            ("/sys/devices/sda/sda2/dev", "8:2\n"),
            ("/sys/devices/sda/sda2/partition", "2\n"),
            ("/sys/devices/dm-0/slaves/sda2/dev", "8:2\n"),
            ("/sys/devices/loop0/loop/backing_file", "/images/disk\n"),
            ("/images/disk", "bytes"),
            ("/sys/dev/block/none", ""),
        ]);
        for (number, device) in [
            ("8:0", "sda"),
            ("8:1", "sda/sda1"),
            ("8:2", "sda/sda2"),
            ("254:0", "dm-0"),
            ("7:0", "loop0"),
        ] {
            let link = tree.root().path(&format!("{BY_NUMBER}/{number}"));
            symlink(format!("../../devices/{device}"), link).unwrap();
        }
        tree
    }

    #[test]
    fn parts_overlap_their_whole() {
        let tree = machine();
        let root = tree.root();
        let numbered = |text| Medium::identified(&root, device(text));
        let [disk, one, two, volume] = ["8:0", "8:1", "8:2", "254:0"].map(numbered);
        assert!(disk.overlaps(&one) && one.overlaps(&disk) && volume.overlaps(&disk));
        assert!(volume.overlaps(&two) && !volume.overlaps(&one) && !one.overlaps(&two));
        let behind = Medium::of(&root, &root.path("/images/disk")).unwrap();
        assert!(numbered("7:0").overlaps(&behind) && behind.overlaps(&numbered("7:0")));
        assert!(!behind.overlaps(&disk));
    }

    #[test]
    fn a_file_is_one_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["one", "other"] {
            fs::write(at(name), name).unwrap();
        }
        fs::hard_link(at("one"), at("again")).unwrap();
        let of = |name: &str| Medium::of(&Root::default(), &at(name)).unwrap();
        assert!(of("one").overlaps(&of("again")));
        assert!(!of("one").overlaps(&of("other")));
    }
}

//! Removing the disks of copies and snapshots that are gone.

use std::collections::BTreeSet;
use std::path::PathBuf;

use insula_base::root::Root;
use insula_driver::Driver;
use insula_image::list;

use super::all;
use crate::attachment::DiskStore;

/// Removes what no image and no node uses any more. To be called after either was removed; what cannot be
/// removed now is left for the next time.
pub fn remove_unused_disks(driver: &Driver, root: &Root) {
    DiskStore::remove_unused(root, || used(driver));
}

/// All files that images and nodes use; `None` if it cannot be told of one of them.
fn used(driver: &Driver) -> Option<BTreeSet<PathBuf>> {
    let images = list(driver).ok()?;
    if !images.unreadable.is_empty() {
        return None;
    }
    let snapshots = images.snapshots.into_iter();
    let mut used: BTreeSet<_> = snapshots
        .flat_map(|snapshot| snapshot.description.disks)
        .map(|disk| disk.path)
        .collect();
    for handle in all(driver).ok()? {
        for disk in handle.record?.disks {
            used.insert(disk.path);
            used.extend(disk.base);
        }
    }
    Some(used)
}

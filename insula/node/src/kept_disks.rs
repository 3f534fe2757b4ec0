//! The disks of a node at the time of a snapshot.

use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::storage::Identity;
use insula_driver::name::Name;
use insula_image::SnapshotDisk;
use tempfile::TempPath;

use super::record::NodeRecord;
use crate::attachment::{DiskFile, DiskStore, open_served};

/// The disks of the node, and the contents that are kept of them.
pub(super) struct KeptDisks<'a> {
    pub(super) disks: &'a [DiskFile],
    /// Of those that it may write to; removed unless they are kept.
    pub(super) contents: Vec<TempPath>,
    /// What a copy gets of each.
    pub(super) described: Vec<SnapshotDisk>,
    store: Option<DiskStore>,
}

impl<'a> KeptDisks<'a> {
    /// Checks that there is room for the contents.
    ///
    /// # Errors
    /// There is none; nothing was touched.
    pub(super) fn of(root: &Root, record: &'a NodeRecord) -> Result<Self, Error> {
        let disks = &record.disks[..];
        let written: Vec<_> = disks
            .iter()
            .filter(|disk| !disk.read_only)
            .cloned()
            .collect();
        let store = match written.is_empty() {
            true => None,
            false => Some(DiskStore::open(root)?),
        };
        store
            .as_ref()
            .map_or(Ok(()), |store| store.check_room(&written))?;
        Ok(Self {
            disks,
            contents: Vec::new(),
            described: Vec::new(),
            store,
        })
    }

    /// Keeps the contents, once the disks of the node, which is paused, have completed its requests:
    /// they are those of the files `served`.
    ///
    /// # Errors
    /// When they cannot be kept, or other files are at their paths.
    pub(super) fn keep_contents(&mut self, served: &[Identity], image: &Name) -> Result<(), Error> {
        for (disk, &served) in self.disks.iter().zip(served) {
            let path = match &self.store {
                Some(store) if !disk.read_only => {
                    let content = store.keep_content(disk, served, image)?;
                    let path = content.to_path_buf();
                    self.contents.push(content);
                    path
                }
                _ => {
                    open_served(disk, served)?;
                    disk.path.clone()
                }
            };
            self.described.push(SnapshotDisk {
                path,
                read_only: disk.read_only,
            });
        }
        Ok(())
    }
}

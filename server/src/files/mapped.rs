//! Files that programs have mapped as shared: their pages are the file system's own.
//!
//! Of what a program stores there nobody hears. That a file was changed so is seen by its content, whenever its times are
//! asked for, it is synced, or a mapping ends: that keeps the time of its last change, as POSIX asks of a mapping.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use nix::errno::Errno;

use crate::Words;
use crate::files::attributes::{Changes, FileType, Time};
use crate::files::content::free_if_unused;
use crate::files::handler::Files;
use crate::files::system::{FileSystem, Inode};
use crate::pages::PAGE;

/// Most pages that are mapped in all: 64 MiB.
const PAGES_MAX: u64 = 1 << 14;

/// A mapping, of which several programs may have parts.
#[derive(Debug)]
struct Mapping {
    inode: Inode,
    /// Behind its last page.
    end: u64,
    is_writable: bool,
}

/// What is mapped.
#[derive(Debug, Default)]
pub(super) struct MappedFiles {
    mappings: BTreeMap<u64, Mapping>,
    /// Of each file that is mapped: how many pages it has had at most since, and what its content was.
    files: BTreeMap<Inode, (u64, u64)>,
}

impl MappedFiles {
    /// Returns where the mappings of a file end, and whether any is to be written; none if it has none.
    fn of(&self, inode: Inode) -> Option<(u64, bool)> {
        let own = self.mappings.values().filter(|one| one.inode == inode);
        own.map(|one| (one.end, one.is_writable))
            .reduce(|one, other| (one.0.max(other.0), one.1 || other.1))
    }

    /// Returns the pages up to the ends of all mappings but a file's.
    fn others(&self, inode: Inode) -> u64 {
        let others = self.files.keys().filter(|other| **other != inode);
        let ends = others.filter_map(|other| self.of(*other));
        ends.map(|(end, _)| end).sum()
    }

    fn inodes(&self) -> Vec<Inode> {
        self.files.keys().copied().collect()
    }

    /// Whether nothing is mapped.
    pub(super) fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }
}

impl<F: FileSystem> Files<F> {
    /// Maps a range of a file.
    pub(super) fn map(&mut self, words: Words) -> Result<u64, Errno> {
        let [handle, mapping, offset, length, is_writable, _] = words;
        let description = self.open.find(handle)?;
        description.may_read()?;
        let inode = description.inode;
        let attributes = self.system.attributes(inode)?;
        if attributes.kind != FileType::File {
            return Err(Errno::ENODEV);
        }
        let end = offset.checked_add(length).ok_or(Errno::EOVERFLOW)?;
        let (first, end) = (offset / PAGE as u64, end.div_ceil(PAGE as u64));
        let pages = attributes.size.div_ceil(PAGE as u64);
        // Of a file that may grow, all up to the end of the mapping.
        if end.saturating_add(self.mapped.others(inode)) > PAGES_MAX {
            return Err(Errno::ENOMEM);
        }
        let is_new = self.mapped.of(inode).is_none();
        if let Err(error) = self.show(inode, first..end.min(pages)) {
            if is_new {
                self.system.unmap(inode)?;
            }
            return Err(error);
        }
        self.add_mapping(mapping, (inode, end, is_writable != 0));
        // Pages that it has had before a cut are to be told of again, if it grows: they may lie in this mapping alone.
        let digest = self.digest(inode);
        let file = self.mapped.files.entry(inode).or_default();
        *file = (pages, digest);
        Ok(0)
    }

    fn add_mapping(&mut self, mapping: u64, (inode, end, is_writable): (Inode, u64, bool)) {
        let open = &self.open;
        let entry = self.mapped.mappings.entry(mapping).or_insert_with(|| {
            // It is not deleted as long as it is mapped.
            open.counts().open(inode);
            Mapping {
                inode,
                end,
                is_writable,
            }
        });
        entry.end = entry.end.max(end);
    }

    /// Has the kernel know pages of a file.
    fn show(&mut self, inode: Inode, numbers: std::ops::Range<u64>) -> Result<(), Errno> {
        let pages = self.system.pages(inode).cloned().ok_or(Errno::ENODEV)?;
        self.system.map(inode, numbers.clone())?;
        for number in numbers {
            let bytes = self.system.peek(inode, number * PAGE as u64)?;
            pages.map(bytes, (inode, number)).ok_or(Errno::ENOMEM)?;
        }
        Ok(())
    }

    /// Ends a mapping.
    pub(super) fn unmap(&mut self, mapping: u64) -> Result<u64, Errno> {
        let Some(ended) = self.mapped.mappings.remove(&mapping) else {
            return Ok(0);
        };
        let inode = ended.inode;
        let unmapped = match self.mapped.of(inode) {
            Some(_) => Ok(()),
            None => {
                self.mapped.files.remove(&inode);
                self.system.unmap(inode)
            }
        };
        let mut counts = self.open.counts();
        if counts.close(inode) {
            free_if_unused(&mut self.system, &counts, inode)?;
        }
        unmapped.map(|()| 0)
    }

    /// Has what was stored to a mapped file survive.
    pub(super) fn sync_mapping(&mut self, mapping: u64) -> Result<u64, Errno> {
        let mapping = self.mapped.mappings.get(&mapping);
        let inode = mapping.ok_or(Errno::ESTALE)?.inode;
        self.system.sync(inode, false)?;
        Ok(0)
    }

    /// Has the kernel know the pages by which files have grown within their mappings. A page for which there is no room is none
    /// (SIGBUS).
    pub(super) fn show_grown(&mut self) {
        for inode in self.mapped.inodes() {
            let (Some((end, _)), Ok(attributes)) =
                (self.mapped.of(inode), self.system.attributes(inode))
            else {
                continue;
            };
            let pages = attributes.size.div_ceil(PAGE as u64);
            if let Some((shown, _)) = self.mapped.files.get_mut(&inode)
                && *shown < pages
            {
                let new = *shown..pages.min(end);
                *shown = pages;
                let _ = self.show(inode, new);
            }
        }
    }

    /// Gives files that programs have stored to the time of their last change.
    pub(super) fn note_stores(&mut self) {
        for inode in self.mapped.inodes() {
            let digest = self.digest(inode);
            let before = self.mapped.files.get_mut(&inode);
            if let Some((_, before)) = before.filter(|(_, before)| *before != digest) {
                *before = digest;
                let changes = Changes {
                    modified: Some(Time::now()),
                    ..Changes::default()
                };
                // A file system that nothing changes any more keeps the time, too: no reason to fail the request.
                let _ = self.system.change(inode, &changes);
            }
        }
    }

    /// Takes the content of mapped files as it is: a request has changed it, or what of it is mapped.
    pub(super) fn note_content(&mut self) {
        for inode in self.mapped.inodes() {
            let digest = self.digest(inode);
            if let Some((_, before)) = self.mapped.files.get_mut(&inode) {
                *before = digest;
            }
        }
    }

    /// Returns a hash of what is mapped of a file to be written; the same for all others.
    fn digest(&mut self, inode: Inode) -> u64 {
        let Some((end, true)) = self.mapped.of(inode) else {
            return 0;
        };
        let mut hasher = DefaultHasher::new();
        for number in 0..end {
            match self.system.peek(inode, number * PAGE as u64) {
                Ok([]) | Err(_) => break,
                Ok(bytes) => hasher.write(bytes),
            }
        }
        hasher.finish()
    }
}

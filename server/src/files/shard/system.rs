//! The file system as a thread of the server has it.

use std::sync::{Arc, MutexGuard};

use nix::errno::Errno;

use super::cache::{ContentCache, Page};
use super::{Announcer, Shared};
use crate::Announcement;
use crate::files::attributes::{Attributes, BLOCK, Changes};
use crate::files::open_files::lock;
use crate::files::system::{Entry, FileSystem, Inode, Statistics};
use crate::pages::{Block, PagePool};

type Answer<T> = Result<T, Errno>;

/// A file system that several threads serve: each has one of these.
#[derive(Debug)]
pub struct SharedSystem<F> {
    shared: Arc<Shared<F>>,
    /// The shard's number; 0 for the thread of names, which keeps no content.
    number: usize,
    /// What was read last.
    page: Option<Page>,
}

impl<F: FileSystem> SharedSystem<F> {
    pub(super) fn new(shared: &Arc<Shared<F>>, number: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            number,
            page: None,
        }
    }

    /// Locks the file system.
    pub fn lock(&self) -> MutexGuard<'_, F> {
        lock(&self.shared.system)
    }

    /// Has the kernel read this shard's pages by itself.
    pub(super) fn share_pages(&self, announcer: Arc<dyn Announcer>) {
        if let Some(index) = self.number.checked_sub(1) {
            self.shared.set_announcer(index, announcer);
        }
    }

    /// Locks what the shard keeps; none for the thread of names.
    fn cache(&self) -> Option<MutexGuard<'_, ContentCache>> {
        let index = self.number.checked_sub(1)?;
        Some(lock(&self.shared.parts[index].cache))
    }

    /// Reads a page that the cache does not have, or of which the file system is to hear that it was read.
    fn read_into(&self, cache: &mut ContentCache, (file, number): (Inode, u64)) -> Answer<Page> {
        let mut system = self.lock();
        let block = cache.pool().block(BLOCK as usize);
        let page = read_page(&mut *system, block, (file, number))?;
        cache.put_read(file, system.attributes(file)?);
        if !page.bytes().is_empty() {
            cache.put_page(file, number, page.clone());
        }
        Ok(page)
    }

    fn forget(&self, inode: Inode) {
        self.shared.cache_of(inode).forget(inode);
    }

    /// Makes a change of an inode, after which nothing is kept of it. Its shard sees it before that or after.
    fn change_inode<T>(&self, inode: Inode, change: impl FnOnce(&mut F) -> Answer<T>) -> Answer<T> {
        let mut cache = self.shared.cache_of(inode);
        let changed = change(&mut self.lock());
        cache.forget(inode);
        changed
    }

    /// Writes to a file, at the offset that `place` returns for its size. Returns that, and the number of bytes.
    fn write_at(
        &mut self,
        file: Inode,
        place: impl FnOnce(u64) -> u64,
        bytes: &[u8],
    ) -> Answer<(u64, usize)> {
        // What was read last is not to be copied when it is changed.
        self.page = None;
        let mut cache = self.shared.cache_of(file);
        let mut system = self.lock();
        let write = || {
            let size = match cache.attributes(file) {
                Some(attributes) => attributes.size,
                None => system.attributes(file)?.size,
            };
            let offset = place(size);
            let written = system.write(file, offset, bytes)?;
            cache.write(file, (offset, size), &bytes[..written]);
            cache.put(file, system.attributes(file)?);
            Ok((offset, written))
        };
        let written = write();
        if written.is_err() {
            cache.forget(file);
        }
        written
    }
}

/// Reads a page of a file into a block.
fn read_page(
    system: &mut impl FileSystem,
    mut block: Block,
    (file, number): (Inode, u64),
) -> Answer<Page> {
    let mut length = 0;
    while length < block.len() {
        let bytes = system.read(file, number * BLOCK + length as u64)?;
        let part = bytes.len().min(block.len() - length);
        if part == 0 {
            break;
        }
        block[length..length + part].copy_from_slice(&bytes[..part]);
        length += part;
    }
    Ok(Page::new(block, length))
}

impl<F: FileSystem> FileSystem for SharedSystem<F> {
    fn root(&self) -> Inode {
        self.lock().root()
    }

    fn lookup(&mut self, directory: Inode, name: &[u8]) -> Answer<Inode> {
        self.lock().lookup(directory, name)
    }

    fn parent(&mut self, directory: Inode) -> Answer<Inode> {
        self.lock().parent(directory)
    }

    fn attributes(&mut self, inode: Inode) -> Answer<Attributes> {
        let Some(mut cache) = self.cache() else {
            return self.lock().attributes(inode);
        };
        if let Some(attributes) = cache.attributes(inode) {
            return Ok(attributes);
        }
        let attributes = self.lock().attributes(inode)?;
        cache.put(inode, attributes);
        Ok(attributes)
    }

    fn change(&mut self, inode: Inode, changes: &Changes) -> Answer<()> {
        self.change_inode(inode, |system| system.change(inode, changes))
    }

    fn read(&mut self, file: Inode, offset: u64) -> Answer<&[u8]> {
        let number = offset / BLOCK;
        let page = match self.cache() {
            None => {
                let block = self.shared.cache_of(file).pool().block(BLOCK as usize);
                read_page(&mut *self.lock(), block, (file, number))?
            }
            Some(mut cache) => match cache.page(file, number) {
                Some(page) if !cache.notes_read(file) => page,
                _ => self.read_into(&mut cache, (file, number))?,
            },
        };
        let bytes = self.page.insert(page).bytes();
        Ok(bytes.get((offset % BLOCK) as usize..).unwrap_or(&[]))
    }

    fn pages(&self, inode: Inode) -> Option<&PagePool> {
        Some(&self.shared.part_of(inode).pool)
    }

    fn share(&mut self, file: Inode, offset: u64, _size: u64) {
        if let Some(mut cache) = self.cache() {
            cache.share(file, offset / BLOCK);
        }
    }

    /// Announces, of all shards whose files' names or attributes this thread may have changed.
    fn take_announcements(&self) -> Vec<Announcement> {
        match self.number.checked_sub(1) {
            Some(index) => self.shared.announce(index),
            None => (0..self.shared.parts.len()).for_each(|index| self.shared.announce(index)),
        }
        Vec::new()
    }

    fn write(&mut self, file: Inode, offset: u64, bytes: &[u8]) -> Answer<usize> {
        let written = self.write_at(file, |_| offset, bytes);
        written.map(|(_, written)| written)
    }

    fn append(&mut self, file: Inode, bytes: &[u8]) -> Answer<(u64, usize)> {
        self.write_at(file, |size| size, bytes)
    }

    fn allocate(&mut self, file: Inode, offset: u64, length: u64) -> Answer<()> {
        self.change_inode(file, |system| system.allocate(file, offset, length))
    }

    fn punch(&mut self, file: Inode, offset: u64, length: u64) -> Answer<()> {
        self.change_inode(file, |system| system.punch(file, offset, length))
    }

    fn create(
        &mut self,
        directory: Inode,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Answer<Inode> {
        self.lock().create(directory, name, attributes, target)
    }

    fn target(&mut self, link: Inode) -> Answer<Vec<u8>> {
        self.lock().target(link)
    }

    fn link(&mut self, inode: Inode, directory: Inode, name: &[u8]) -> Answer<()> {
        self.change_inode(inode, |system| system.link(inode, directory, name))
    }

    fn unlink(&mut self, directory: Inode, name: &[u8]) -> Answer<()> {
        let inode = self.lock().lookup(directory, name)?;
        self.change_inode(inode, |system| system.unlink(directory, name))
    }

    fn rename(&mut self, from: (Inode, &[u8]), to: (Inode, &[u8])) -> Answer<()> {
        let mut system = self.lock();
        let moved = system.lookup(from.0, from.1)?;
        let replaced = system.lookup(to.0, to.1).ok();
        let renamed = system.rename(from, to);
        drop(system);
        self.forget(moved);
        replaced.inspect(|inode| self.forget(*inode));
        renamed
    }

    fn next_entry(&mut self, directory: Inode, after: u64) -> Answer<Option<Entry>> {
        self.lock().next_entry(directory, after)
    }

    fn free(&mut self, inode: Inode) -> Answer<()> {
        self.change_inode(inode, |system| system.free(inode))
    }

    fn sync(&mut self, inode: Inode, data_only: bool) -> Answer<()> {
        self.lock().sync(inode, data_only)
    }

    fn statistics(&mut self) -> Answer<Statistics> {
        self.lock().statistics()
    }
}

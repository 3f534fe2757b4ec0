//! What a file system does.

use std::ops::Range;

use nix::errno::Errno;

use crate::Announcement;
use crate::files::attributes::{Attributes, Changes};
use crate::pages::PagePool;

/// Number of an inode. 0 is none.
pub type Inode = u64;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the directory, by which listing goes on behind it: 3 at least, and its own as long
    /// as it is there.
    pub cookie: u64,
    /// The name.
    pub name: Vec<u8>,
    /// What it names.
    pub inode: Inode,
}

/// Room in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Free ones.
    pub free_blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free ones.
    pub free_inodes: u64,
}

/// A file system. Names are checked: not empty, `.` or `..`, at most 255 bytes without `/` and 0; and
/// inodes are those that it has named, of the type that the call needs. Times of files are the system's
/// to keep.
///
/// All calls fail with the errors of the system call that needs them.
#[expect(clippy::missing_errors_doc, reason = "said above")]
pub trait FileSystem {
    /// The root directory.
    fn root(&self) -> Inode;

    /// The memory in which content of a file lies, if the kernel may read that by itself. What [`FileSystem::read`]
    /// returns of it is that page of the file until the block is dropped, or the file is cut.
    fn pages(&self, _inode: Inode) -> Option<&PagePool> {
        None
    }

    /// Has the kernel read a page of a file by itself: that of an offset which was just read. The file has that size.
    fn share(&mut self, file: Inode, offset: u64, size: u64) {
        let pages = self.pages(file).cloned();
        if let (Some(pages), Ok(bytes)) = (pages, self.peek(file, offset)) {
            pages.share(bytes, (file, offset), size);
        }
    }

    /// Takes what is to be announced to the kernel of these pages, with the reply to a request.
    fn take_announcements(&self) -> Vec<Announcement> {
        let pages = self.pages(self.root());
        pages.map_or(Vec::new(), PagePool::take_announcements)
    }

    /// What a name in a directory names: [`Errno::ENOENT`] if nothing.
    fn lookup(&mut self, directory: Inode, name: &[u8]) -> Result<Inode, Errno>;

    /// The directory that a directory is in; the root's is itself.
    fn parent(&mut self, directory: Inode) -> Result<Inode, Errno>;

    /// The attributes of an inode.
    fn attributes(&mut self, inode: Inode) -> Result<Attributes, Errno>;

    /// Changes attributes. A new size cuts a file, or has it end with zeros.
    fn change(&mut self, inode: Inode, changes: &Changes) -> Result<(), Errno>;

    /// The bytes of a file from an offset to the end of their block or of the file, whichever is first;
    /// none at its end.
    fn read(&mut self, file: Inode, offset: u64) -> Result<&[u8], Errno>;

    /// The same as [`FileSystem::read`], but that it is no access that counts for the file's times.
    fn peek(&mut self, file: Inode, offset: u64) -> Result<&[u8], Errno> {
        self.read(file, offset)
    }

    /// Has pages of a file, by their numbers, lie in [`FileSystem::pages`], as far as the file goes: each in one place, whatever
    /// becomes of the file, until [`FileSystem::unmap`]. What is cut off meanwhile has zeros there.
    fn map(&mut self, _file: Inode, _numbers: Range<u64>) -> Result<(), Errno> {
        Err(Errno::ENODEV)
    }

    /// Ends that for all of a file.
    fn unmap(&mut self, _file: Inode) -> Result<(), Errno> {
        Ok(())
    }

    /// Writes bytes; what lies between the end and the offset becomes zeros. Returns how many were
    /// written: fewer than given where there is no more room, but one at least.
    fn write(&mut self, file: Inode, offset: u64, bytes: &[u8]) -> Result<usize, Errno>;

    /// Writes bytes behind the end of a file, wherever that is at that moment. Returns the offset, and how many were written, as
    /// of [`FileSystem::write`].
    fn append(&mut self, file: Inode, bytes: &[u8]) -> Result<(u64, usize), Errno> {
        let end = self.attributes(file)?.size;
        Ok((end, self.write(file, end, bytes)?))
    }

    /// Has a range of a file have blocks, so that writing there does not fail for want of room.
    fn allocate(&mut self, file: Inode, offset: u64, length: u64) -> Result<(), Errno>;

    /// Frees the blocks of a range, which reads as zeros then.
    fn punch(&mut self, file: Inode, offset: u64, length: u64) -> Result<(), Errno>;

    /// Creates a file, directory or symbolic link under a name that is free. `target` is a link's.
    fn create(
        &mut self,
        directory: Inode,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<Inode, Errno>;

    /// The target of a symbolic link.
    fn target(&mut self, link: Inode) -> Result<Vec<u8>, Errno>;

    /// Gives an inode that is no directory one more name.
    fn link(&mut self, inode: Inode, directory: Inode, name: &[u8]) -> Result<(), Errno>;

    /// Removes a name; of a directory, an empty one. The inode stays until [`FileSystem::free`].
    fn unlink(&mut self, directory: Inode, name: &[u8]) -> Result<(), Errno>;

    /// Moves a name to another place. What has that name loses it as by [`FileSystem::unlink`], at the
    /// same moment: at no time is the name free.
    fn rename(&mut self, from: (Inode, &[u8]), to: (Inode, &[u8])) -> Result<(), Errno>;

    /// The first entry of a directory behind a place, in any order that stays the same.
    fn next_entry(&mut self, directory: Inode, after: u64) -> Result<Option<Entry>, Errno>;

    /// Frees an inode without names that nobody has open.
    fn free(&mut self, inode: Inode) -> Result<(), Errno>;

    /// Returns when what was written of an inode would survive a loss of power, or only its data and what
    /// is needed to read them.
    fn sync(&mut self, inode: Inode, data_only: bool) -> Result<(), Errno>;

    /// The room that there is.
    fn statistics(&mut self) -> Result<Statistics, Errno>;
}

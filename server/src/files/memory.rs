//! A file system in memory: on-memory files of the AnT paper, which grow and shrink, and keep their
//! times.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use nix::errno::Errno;

use crate::files::attributes::{Attributes, BLOCK, Changes, FileType, Time};
use crate::files::system::{Entry, FileSystem, Inode, Statistics};
use crate::pages::{Block, PagePool};

const ROOT: Inode = 1;
/// Places in directories begin behind those of `.` and `..`.
const FIRST_COOKIE: u64 = 3;
const SECTORS: u64 = BLOCK / 512;
/// Largest file, in bytes.
const SIZE_MAX: u64 = 1 << 44;

static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Content of an inode.
#[derive(Debug)]
enum Content {
    File(BTreeMap<u64, Block>),
    Directory(Directory),
    Link(Vec<u8>),
}

#[derive(Debug)]
struct Directory {
    parent: Inode,
    names: BTreeMap<Vec<u8>, (Inode, u64)>,
    by_cookie: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
}

impl Directory {
    fn new(parent: Inode) -> Self {
        Self {
            parent,
            names: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: FIRST_COOKIE,
        }
    }

    fn insert(&mut self, name: &[u8], inode: Inode) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.to_vec(), (inode, cookie));
        self.by_cookie.insert(cookie, name.to_vec());
    }

    fn remove(&mut self, name: &[u8]) -> Option<Inode> {
        let (inode, cookie) = self.names.remove(name)?;
        self.by_cookie.remove(&cookie);
        Some(inode)
    }
}

#[derive(Debug)]
struct Node {
    attributes: Attributes,
    content: Content,
}

/// A file system in memory.
#[derive(Debug)]
pub struct Memory {
    nodes: BTreeMap<Inode, Node>,
    last: Inode,
    /// Blocks in use, and most that may be.
    blocks: (u64, u64),
    pages: PagePool,
    /// Files that are mapped: their blocks stay.
    mapped: BTreeSet<Inode>,
}

impl Memory {
    /// Creates an empty one, whose files may have that many bytes in all.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let now = Time::now();
        let attributes = Attributes {
            kind: FileType::Directory,
            permissions: 0o755,
            links: 2,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            ..Attributes::default()
        };
        let root = Node {
            attributes,
            content: Content::Directory(Directory::new(ROOT)),
        };
        Self {
            nodes: BTreeMap::from([(ROOT, root)]),
            last: ROOT,
            blocks: (0, bytes / BLOCK),
            pages: PagePool::new(usize::try_from(bytes).unwrap_or(usize::MAX)),
            mapped: BTreeSet::new(),
        }
    }

    fn node(&mut self, inode: Inode) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&inode).ok_or(Errno::ESTALE)
    }

    fn directory(&mut self, inode: Inode) -> Result<(&mut Attributes, &mut Directory), Errno> {
        match self.node(inode)? {
            Node {
                attributes,
                content: Content::Directory(directory),
            } => Ok((attributes, directory)),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn file(
        &mut self,
        inode: Inode,
    ) -> Result<(&mut Attributes, &mut BTreeMap<u64, Block>), Errno> {
        match self.node(inode)? {
            Node {
                attributes,
                content: Content::File(blocks),
            } => Ok((attributes, blocks)),
            Node {
                content: Content::Directory(_),
                ..
            } => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Adds a name, and counts it.
    fn add_name(&mut self, (directory, name): (Inode, &[u8]), inode: Inode) -> Result<(), Errno> {
        let is_directory = self.node(inode)?.attributes.kind == FileType::Directory;
        let now = Time::now();
        let (attributes, names) = self.directory(directory)?;
        names.insert(name, inode);
        (attributes.modified, attributes.changed) = (now, now);
        attributes.size += name.len() as u64;
        if is_directory {
            attributes.links += 1;
            self.directory(inode)?.1.parent = directory;
        }
        let own = &mut self.node(inode)?.attributes;
        own.changed = now;
        if !is_directory {
            own.links += 1;
        }
        Ok(())
    }

    /// Removes a name. Returns what it named.
    fn remove_name(&mut self, (directory, name): (Inode, &[u8])) -> Result<Inode, Errno> {
        let now = Time::now();
        let (attributes, names) = self.directory(directory)?;
        let inode = names.remove(name).ok_or(Errno::ENOENT)?;
        (attributes.modified, attributes.changed) = (now, now);
        attributes.size = attributes.size.saturating_sub(name.len() as u64);
        let own = &mut self.node(inode)?.attributes;
        own.changed = now;
        match own.kind {
            FileType::Directory => self.directory(directory)?.0.links -= 1,
            _ => own.links -= 1,
        }
        Ok(inode)
    }

    /// Returns the block of a file for writing, a new one if it has none.
    fn block(&mut self, file: Inode, index: u64) -> Result<&mut Block, Errno> {
        let (used, most) = self.blocks;
        let is_there = self.file(file)?.1.contains_key(&index);
        if !is_there {
            if used >= most {
                return Err(Errno::ENOSPC);
            }
            self.blocks.0 += 1;
            self.file(file)?.0.sectors += SECTORS;
        }
        let pages = self.pages.clone();
        let (_, blocks) = self.file(file)?;
        Ok(blocks
            .entry(index)
            .or_insert_with(|| pages.block(BLOCK as usize)))
    }

    /// Frees blocks of a file, by their numbers; if it is mapped they become zeros.
    fn free_blocks(&mut self, file: Inode, range: Range<u64>) -> Result<(), Errno> {
        let is_mapped = self.mapped.contains(&file);
        let (attributes, blocks) = self.file(file)?;
        if is_mapped {
            blocks.range_mut(range).for_each(|(_, block)| block.fill(0));
            return Ok(());
        }
        let freed = blocks.extract_if(range, |_, _| true).count() as u64;
        attributes.sectors -= freed * SECTORS;
        self.blocks.0 -= freed;
        Ok(())
    }

    /// Has a range be zeros, as far as the file has blocks there.
    fn clear(&mut self, file: Inode, start: u64, end: u64) -> Result<(), Errno> {
        if start >= end {
            return Ok(());
        }
        let (_, blocks) = self.file(file)?;
        for (index, block) in blocks.range_mut(start / BLOCK..end.div_ceil(BLOCK)) {
            let first = index * BLOCK;
            let within = |at: u64| (at.max(first) - first).min(BLOCK) as usize;
            block[within(start)..within(end)].fill(0);
        }
        Ok(())
    }

    fn set_size(&mut self, file: Inode, size: u64) -> Result<(), Errno> {
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        let before = self.file(file)?.0.size;
        if size < before {
            self.free_blocks(file, size.div_ceil(BLOCK)..u64::MAX)?;
            let end = size.next_multiple_of(BLOCK);
            self.clear(file, size, end)?;
        }
        self.clear_stored(file, before, size)?;
        self.file(file)?.0.size = size;
        Ok(())
    }

    /// Before a file grows: what a program has stored behind its end, by a mapping, is not its content.
    fn clear_stored(&mut self, file: Inode, before: u64, size: u64) -> Result<(), Errno> {
        match self.mapped.contains(&file) {
            true => self.clear(file, before, size),
            false => Ok(()),
        }
    }
}

impl FileSystem for Memory {
    fn root(&self) -> Inode {
        ROOT
    }

    fn pages(&self, _: Inode) -> Option<&PagePool> {
        Some(&self.pages)
    }

    fn lookup(&mut self, directory: Inode, name: &[u8]) -> Result<Inode, Errno> {
        let (_, directory) = self.directory(directory)?;
        let found = directory.names.get(name);
        found.map(|(inode, _)| *inode).ok_or(Errno::ENOENT)
    }

    fn parent(&mut self, directory: Inode) -> Result<Inode, Errno> {
        Ok(self.directory(directory)?.1.parent)
    }

    fn attributes(&mut self, inode: Inode) -> Result<Attributes, Errno> {
        Ok(self.node(inode)?.attributes)
    }

    fn change(&mut self, inode: Inode, changes: &Changes) -> Result<(), Errno> {
        let now = Time::now();
        if let Some(size) = changes.size {
            self.set_size(inode, size)?;
            self.node(inode)?.attributes.modified = now;
        }
        let own = &mut self.node(inode)?.attributes;
        own.permissions = changes.permissions.unwrap_or(own.permissions);
        own.user = changes.user.unwrap_or(own.user);
        own.group = changes.group.unwrap_or(own.group);
        own.accessed = changes.accessed.unwrap_or(own.accessed);
        own.modified = changes.modified.unwrap_or(own.modified);
        own.changed = now;
        Ok(())
    }

    fn read(&mut self, file: Inode, offset: u64) -> Result<&[u8], Errno> {
        let (attributes, _) = self.file(file)?;
        if offset < attributes.size {
            attributes.accessed = Time::now();
        }
        self.peek(file, offset)
    }

    fn peek(&mut self, file: Inode, offset: u64) -> Result<&[u8], Errno> {
        let (attributes, blocks) = self.file(file)?;
        let start = offset % BLOCK;
        let length = attributes.size.saturating_sub(offset).min(BLOCK - start);
        let block = blocks.get(&(offset / BLOCK));
        let block = block.map_or(&ZEROS[..], |block| block);
        Ok(&block[start as usize..(start + length) as usize])
    }

    fn map(&mut self, file: Inode, mut numbers: Range<u64>) -> Result<(), Errno> {
        self.file(file)?;
        self.mapped.insert(file);
        numbers.try_for_each(|number| self.block(file, number).map(drop))
    }

    fn unmap(&mut self, file: Inode) -> Result<(), Errno> {
        self.mapped.remove(&file);
        let end = self.file(file)?.0.size.div_ceil(BLOCK);
        self.free_blocks(file, end..u64::MAX)
    }

    fn write(&mut self, file: Inode, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::EFBIG)?;
        if end > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        let before = self.file(file)?.0.size;
        self.clear_stored(file, before, offset)?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (index, start) = (at / BLOCK, (at % BLOCK) as usize);
            let part = (BLOCK as usize - start).min(bytes.len() - done);
            match self.block(file, index) {
                Ok(block) => {
                    block[start..start + part].copy_from_slice(&bytes[done..done + part]);
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            done += part;
        }
        let now = Time::now();
        let own = self.file(file)?.0;
        own.size = own.size.max(offset + done as u64);
        (own.modified, own.changed) = (now, now);
        Ok(done)
    }

    fn allocate(&mut self, file: Inode, offset: u64, length: u64) -> Result<(), Errno> {
        let end = offset.checked_add(length).filter(|end| *end <= SIZE_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        (offset / BLOCK..end.div_ceil(BLOCK))
            .try_for_each(|index| self.block(file, index).map(drop))
    }

    fn punch(&mut self, file: Inode, offset: u64, length: u64) -> Result<(), Errno> {
        let end = offset.saturating_add(length);
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        if first < last {
            self.free_blocks(file, first..last)?;
        }
        let size = self.file(file)?.0.size;
        self.clear(
            file,
            offset.min(size),
            end.min(size.next_multiple_of(BLOCK)),
        )?;
        let now = Time::now();
        let own = self.file(file)?.0;
        (own.modified, own.changed) = (now, now);
        Ok(())
    }

    fn create(
        &mut self,
        directory: Inode,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<Inode, Errno> {
        let (inode, now) = (self.last + 1, Time::now());
        let content = match attributes.kind {
            FileType::File => Content::File(BTreeMap::new()),
            FileType::Directory => Content::Directory(Directory::new(directory)),
            FileType::Link => Content::Link(target.to_vec()),
        };
        let attributes = Attributes {
            // A directory names itself, and its parent names it; other names are counted.
            links: match attributes.kind {
                FileType::Directory => 2,
                _ => 0,
            },
            size: target.len() as u64,
            sectors: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            ..*attributes
        };
        self.nodes.insert(
            inode,
            Node {
                attributes,
                content,
            },
        );
        self.last = inode;
        self.add_name((directory, name), inode)?;
        Ok(inode)
    }

    fn target(&mut self, link: Inode) -> Result<Vec<u8>, Errno> {
        match &self.node(link)?.content {
            Content::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn link(&mut self, inode: Inode, directory: Inode, name: &[u8]) -> Result<(), Errno> {
        self.add_name((directory, name), inode)
    }

    fn unlink(&mut self, directory: Inode, name: &[u8]) -> Result<(), Errno> {
        let inode = self.lookup(directory, name)?;
        if let Content::Directory(own) = &self.node(inode)?.content {
            if !own.names.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            self.node(inode)?.attributes.links = 0;
        }
        self.remove_name((directory, name)).map(drop)
    }

    fn rename(&mut self, from: (Inode, &[u8]), to: (Inode, &[u8])) -> Result<(), Errno> {
        match self.unlink(to.0, to.1) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        let inode = self.remove_name(from)?;
        self.add_name(to, inode)
    }

    fn next_entry(&mut self, directory: Inode, after: u64) -> Result<Option<Entry>, Errno> {
        let (attributes, directory) = self.directory(directory)?;
        attributes.accessed = Time::now();
        let mut next = directory.by_cookie.range(after.saturating_add(1)..);
        Ok(next.next().map(|(cookie, name)| Entry {
            cookie: *cookie,
            name: name.clone(),
            inode: directory.names[name].0,
        }))
    }

    fn free(&mut self, inode: Inode) -> Result<(), Errno> {
        if let Content::File(_) = self.node(inode)?.content {
            self.free_blocks(inode, 0..u64::MAX)?;
        }
        self.nodes.remove(&inode);
        Ok(())
    }

    fn sync(&mut self, _: Inode, _: bool) -> Result<(), Errno> {
        // As tmpfs: there is nothing that survives.
        Ok(())
    }

    fn statistics(&mut self) -> Result<Statistics, Errno> {
        let (used, most) = self.blocks;
        let inodes = self.nodes.len() as u64;
        Ok(Statistics {
            blocks: most,
            free_blocks: most - used,
            inodes: inodes + (most - used),
            free_inodes: most - used,
        })
    }
}

//! Extent trees: where on the device the blocks of a file are.
//!
//! The root is in the inode. All changes are changes of one leaf, after which the nodes on the way to it
//! are written again: those that are too full are split, those without entries are freed.

mod node;

use self::node::{Child, Node, capacity, checksum_at};
pub(super) use self::node::{Extent, LENGTH_MAX, UNWRITTEN_MAX};
use super::Ext4;
use super::cache::Kind;
use super::checksum::crc32c;
use super::error::{Error, Result};
use super::inode::{Inode, ROOM, flag};
use crate::block::BlockDevice;

/// Blocks of a file that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// They are there.
    Extent(Extent),
    /// They are not there, from the first on to the second, which is 2^32 at the end of all files.
    Hole(u32, u64),
}

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Inode,
    Block(u64),
}

/// A node on the way to a leaf, and which child the way goes on to.
struct Step {
    place: Place,
    node: Node,
    at: usize,
}

impl Inode {
    /// Gives it an empty tree.
    pub(super) fn set_extents(&mut self) {
        self.set_flag(flag::EXTENTS, true);
        Node::Leaf(Vec::new()).write(self.room_mut());
    }

    /// Returns the depth of its tree.
    pub(super) fn depth(&self) -> u64 {
        u64::from(self.room()[6]).min(5)
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns what a file has at a block.
    pub(super) fn run(&mut self, inode: &Inode, logical: u32) -> Result<Run> {
        if let Some((number, extent)) = self.recent
            && number == inode.number
            && (u64::from(extent.logical)..extent.end()).contains(&logical.into())
        {
            return Ok(Run::Extent(extent));
        }
        let path = self.path(inode, logical)?;
        let mut end = 1 << 32;
        for step in &path {
            let next = match &step.node {
                Node::Index(_, children) => children.get(step.at + 1).map(|child| child.logical),
                Node::Leaf(extents) => {
                    let next = extents.get(step.at);
                    if let Some(extent) = next.filter(|extent| extent.logical <= logical) {
                        self.recent = Some((inode.number, *extent));
                        return Ok(Run::Extent(*extent));
                    }
                    next.map(|extent| extent.logical)
                }
            };
            end = next.map_or(end, |next| end.min(next.into()));
        }
        match end > logical.into() {
            true => Ok(Run::Hole(logical, end)),
            false => Err(Error::Damaged("order of an extent tree")),
        }
    }

    /// Returns the last extent of a file.
    pub(super) fn last_extent(&mut self, inode: &Inode) -> Result<Option<Extent>> {
        let mut path = self.path(inode, u32::MAX)?;
        match path.pop().map(|step| step.node) {
            Some(Node::Leaf(extents)) => Ok(extents.last().copied()),
            _ => Ok(None),
        }
    }

    /// Walks to the leaf where a block is, or would be. Its step names the first extent that ends behind
    /// the block.
    fn path(&mut self, inode: &Inode, logical: u32) -> Result<Vec<Step>> {
        if !inode.has(flag::EXTENTS) {
            return Err(Error::Unsupported("a file without extents".into()));
        }
        let blocks = self.superblock.blocks();
        let mut place = Place::Inode;
        let mut node = Node::parse(inode.room(), None, blocks)?;
        let mut path = Vec::new();
        loop {
            let (depth, next, at) = match &node {
                Node::Leaf(extents) => {
                    let at = extents.partition_point(|extent| extent.end() <= logical.into());
                    path.push(Step { place, node, at });
                    return Ok(path);
                }
                Node::Index(depth, children) => {
                    let behind = children.partition_point(|child| child.logical <= logical);
                    let at = behind.saturating_sub(1);
                    (*depth - 1, children[at].block, at)
                }
            };
            path.push(Step { place, node, at });
            place = Place::Block(next);
            node = self.node(inode, next, depth)?;
        }
    }

    fn node(&mut self, inode: &Inode, block: u64, depth: u16) -> Result<Node> {
        let (blocks, seed) = (self.superblock.blocks(), self.seed_of(inode));
        if self.superblock.has_checksums() && !self.cache.is_verified(block) {
            let bytes = self.cache.get(block)?;
            let at = checksum_at(bytes.len());
            if bytes.get(at..at + 4) != Some(&crc32c(seed, &bytes[..at]).to_le_bytes()) {
                return Err(Error::Damaged("checksum of an extent tree"));
            }
            self.cache.set_verified(block);
        }
        Node::parse(self.cache.get(block)?, Some(depth), blocks)
    }

    /// What the checksums of an inode's blocks begin with.
    pub(super) fn seed_of(&self, inode: &Inode) -> u32 {
        let seed = crc32c(self.superblock.seed(), &inode.number.to_le_bytes());
        crc32c(seed, &inode.generation().to_le_bytes())
    }

    /// Has a file have an extent where it has a hole.
    pub(super) fn insert_extent(&mut self, inode: &mut Inode, new: Extent) -> Result<()> {
        self.edit_leaf(inode, new.logical, |extents| {
            let at = extents.partition_point(|extent| extent.logical < new.logical);
            extents.insert(at, new);
        })
    }

    /// Takes a part of an extent out.
    pub(super) fn remove_extent(&mut self, inode: &mut Inode, part: Extent) -> Result<()> {
        self.replace_extent(inode, part, None)
    }

    /// Has a part of an unwritten extent be written.
    pub(super) fn set_written(&mut self, inode: &mut Inode, part: Extent) -> Result<()> {
        let written = Extent {
            is_unwritten: false,
            ..part
        };
        self.replace_extent(inode, part, Some(written))
    }

    fn replace_extent(
        &mut self,
        inode: &mut Inode,
        part: Extent,
        by: Option<Extent>,
    ) -> Result<()> {
        self.edit_leaf(inode, part.logical, |extents| {
            let at = extents.partition_point(|extent| extent.end() <= part.logical.into());
            let Some(old) = extents.get(at).copied() else {
                return;
            };
            let before = old.part(&(0..part.logical.into()));
            let after = old.part(&(part.end()..u64::MAX));
            extents.splice(at..=at, [before, by, after].into_iter().flatten());
        })
    }

    /// Changes the leaf where a block is, or would be, and what leads to it.
    fn edit_leaf(
        &mut self,
        inode: &mut Inode,
        logical: u32,
        change: impl FnOnce(&mut Vec<Extent>),
    ) -> Result<()> {
        self.recent = None;
        let mut path = self.path(inode, logical)?;
        let Some(Step {
            place,
            node: Node::Leaf(mut extents),
            ..
        }) = path.pop()
        else {
            return Err(Error::Damaged("an extent tree without leaf"));
        };
        change(&mut extents);
        merge(&mut extents);
        let mut written = self.write_node(inode, place, Node::Leaf(extents))?;
        while let Some(step) = path.pop() {
            let Node::Index(depth, mut children) = step.node else {
                return Err(Error::Damaged("a leaf above a node"));
            };
            children.splice(step.at..=step.at, written);
            written = self.write_node(inode, step.place, Node::Index(depth, children))?;
        }
        self.pull_up(inode)
    }

    /// Writes a node. Returns what its parent has to name: nothing if it is empty, two nodes if it was
    /// split.
    fn write_node(
        &mut self,
        inode: &mut Inode,
        place: Place,
        mut node: Node,
    ) -> Result<Vec<Child>> {
        let most = capacity(self.superblock.block_size());
        match place {
            Place::Inode => {
                self.write_root(inode, node)?;
                Ok(Vec::new())
            }
            Place::Block(block) if node.len() == 0 => {
                self.free_blocks(block, 1, Kind::Metadata)?;
                inode.count_blocks(-1, self.superblock.block_size())?;
                Ok(Vec::new())
            }
            Place::Block(block) if node.len() <= most => {
                self.write_block(inode, block, &node)?;
                Ok(vec![child(block, &node)])
            }
            Place::Block(block) => {
                let second = node.split();
                self.write_block(inode, block, &node)?;
                let other = self.new_block(inode, &second)?;
                Ok(vec![child(block, &node), child(other, &second)])
            }
        }
    }

    fn write_root(&mut self, inode: &mut Inode, node: Node) -> Result<()> {
        let root = match node.len() {
            0 => Node::Leaf(Vec::new()),
            len if len <= capacity(ROOM) => node,
            _ => {
                let block = self.new_block(inode, &node)?;
                Node::Index(node.depth() + 1, vec![child(block, &node)])
            }
        };
        root.write(inode.room_mut());
        Ok(())
    }

    /// Has a node that is the root's only child, and would fit, be the root.
    fn pull_up(&mut self, inode: &mut Inode) -> Result<()> {
        let blocks = self.superblock.blocks();
        let Node::Index(depth, children) = Node::parse(inode.room(), None, blocks)? else {
            return Ok(());
        };
        let [only] = *children else {
            return Ok(());
        };
        let node = self.node(inode, only.block, depth - 1)?;
        if node.len() <= capacity(ROOM) {
            node.write(inode.room_mut());
            self.free_blocks(only.block, 1, Kind::Metadata)?;
            inode.count_blocks(-1, self.superblock.block_size())?;
        }
        Ok(())
    }

    fn new_block(&mut self, inode: &mut Inode, node: &Node) -> Result<u64> {
        let goal = match node {
            Node::Leaf(extents) => extents.first().map(|extent| extent.physical),
            Node::Index(_, children) => children.first().map(|child| child.block),
        };
        let (block, _) = self.allocate_blocks(goal.unwrap_or(0), 1)?;
        inode.count_blocks(1, self.superblock.block_size())?;
        self.cache.fresh(block, Kind::Metadata)?;
        self.write_block(inode, block, node)?;
        Ok(block)
    }

    fn write_block(&mut self, inode: &Inode, block: u64, node: &Node) -> Result<()> {
        let (seed, has_checksums) = (self.seed_of(inode), self.superblock.has_checksums());
        let bytes = self.cache.modify(block, Kind::Metadata)?;
        node.write(bytes);
        if has_checksums {
            let at = checksum_at(bytes.len());
            let checksum = crc32c(seed, &bytes[..at]);
            bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        }
        Ok(())
    }
}

fn child(block: u64, node: &Node) -> Child {
    Child {
        logical: node.logical(),
        block,
    }
}

/// Joins neighbours.
fn merge(extents: &mut Vec<Extent>) {
    extents.dedup_by(|next, before| {
        let can_merge = before.can_merge(next);
        if can_merge {
            before.length += next.length;
        }
        can_merge
    });
}

//! A node of an extent tree, as it is on disk (Documentation/filesystems/ext4/ifork.rst of Linux).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ext4::error::{Error, Result};

const MAGIC: u16 = 0xf30a;
/// Deepest tree.
const DEPTH_MAX: u16 = 5;
/// Most blocks of an extent; those with larger numbers are unwritten.
pub(in crate::ext4) const LENGTH_MAX: u32 = 32768;
/// Most blocks of an unwritten one.
pub(in crate::ext4) const UNWRITTEN_MAX: u32 = LENGTH_MAX - 1;
/// Bytes of the header, and of each entry.
const ENTRY: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U16,
    entries: U16,
    most: U16,
    depth: U16,
    generation: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtent {
    logical: U32,
    length: U16,
    physical_high: U16,
    physical: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawChild {
    logical: U32,
    block: U32,
    block_high: U16,
    unused: U16,
}

/// Blocks of a file that follow each other on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ext4) struct Extent {
    /// The first block in the file.
    pub(in crate::ext4) logical: u32,
    /// Number of blocks.
    pub(in crate::ext4) length: u32,
    /// The first block on the device.
    pub(in crate::ext4) physical: u64,
    /// Allocated, but zeros for readers.
    pub(in crate::ext4) is_unwritten: bool,
}

impl Extent {
    /// The block in the file behind it.
    pub(in crate::ext4) fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.length)
    }

    /// Returns the part within a range of the file.
    pub(in crate::ext4) fn part(&self, range: &std::ops::Range<u64>) -> Option<Self> {
        let start = range.start.max(self.logical.into());
        let end = range.end.min(self.end());
        let skipped = start.checked_sub(self.logical.into())?;
        (start < end).then(|| Self {
            logical: start as u32,
            length: (end - start) as u32,
            physical: self.physical + skipped,
            is_unwritten: self.is_unwritten,
        })
    }

    /// Whether the next one continues it, as one extent.
    pub(super) fn can_merge(&self, next: &Self) -> bool {
        let most = if self.is_unwritten {
            UNWRITTEN_MAX
        } else {
            LENGTH_MAX
        };
        self.end() == u64::from(next.logical)
            && self.physical + u64::from(self.length) == next.physical
            && self.is_unwritten == next.is_unwritten
            && self.length + next.length <= most
    }
}

/// A child of an index node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) logical: u32,
    pub(super) block: u64,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Leaf(Vec<Extent>),
    Index(u16, Vec<Child>),
}

impl Node {
    /// Reads a node. Its blocks are all among the first `blocks`, and its entries are in order.
    pub(super) fn parse(bytes: &[u8], depth: Option<u16>, blocks: u64) -> Result<Self> {
        let wrong = |_| Error::Damaged("an extent tree");
        let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| wrong(()))?;
        let (entries, found) = (usize::from(header.entries.get()), header.depth.get());
        let is_good = header.magic.get() == MAGIC
            && entries <= capacity(bytes.len())
            && found <= DEPTH_MAX
            && depth.is_none_or(|depth| depth == found)
            && (entries > 0 || found == 0);
        if !is_good {
            return Err(wrong(()));
        }
        let entries = rest.chunks_exact(ENTRY).take(entries);
        let node = match found {
            0 => Self::Leaf(entries.map(extent).collect()),
            depth => Self::Index(depth, entries.map(child).collect()),
        };
        match node.is_valid(blocks) {
            true => Ok(node),
            false => Err(wrong(())),
        }
    }

    fn is_valid(&self, blocks: u64) -> bool {
        match self {
            Self::Leaf(extents) => {
                let inside = |of: &Extent| {
                    let end = of.physical.checked_add(of.length.into());
                    of.length > 0
                        && of.physical > 0
                        && end.is_some_and(|end| end <= blocks)
                        && of.end() <= 1 << 32
                };
                extents.iter().all(inside)
                    && extents
                        .windows(2)
                        .all(|pair| pair[0].end() <= pair[1].logical.into())
            }
            Self::Index(_, children) => {
                children.iter().all(|of| of.block > 0 && of.block < blocks)
                    && children
                        .windows(2)
                        .all(|pair| pair[0].logical < pair[1].logical)
            }
        }
    }

    pub(super) fn depth(&self) -> u16 {
        match self {
            Self::Leaf(_) => 0,
            Self::Index(depth, _) => *depth,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leaf(extents) => extents.len(),
            Self::Index(_, children) => children.len(),
        }
    }

    /// The first block of the file in it.
    pub(super) fn logical(&self) -> u32 {
        let first = match self {
            Self::Leaf(extents) => extents.first().map(|extent| extent.logical),
            Self::Index(_, children) => children.first().map(|child| child.logical),
        };
        first.unwrap_or(0)
    }

    /// Takes the second half out.
    pub(super) fn split(&mut self) -> Self {
        let at = self.len() / 2;
        match self {
            Self::Leaf(extents) => Self::Leaf(extents.split_off(at)),
            Self::Index(depth, children) => Self::Index(*depth, children.split_off(at)),
        }
    }

    /// Writes it. It must fit.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        let header = Header {
            magic: MAGIC.into(),
            entries: (self.len() as u16).into(),
            most: (capacity(bytes.len()) as u16).into(),
            depth: self.depth().into(),
            generation: 0.into(),
        };
        let (head, rest) = bytes.split_at_mut(ENTRY);
        head.copy_from_slice(header.as_bytes());
        rest.fill(0);
        let places = rest.chunks_exact_mut(ENTRY);
        match self {
            Self::Leaf(extents) => {
                for (place, extent) in places.zip(extents) {
                    place.copy_from_slice(raw_extent(extent).as_bytes());
                }
            }
            Self::Index(_, children) => {
                for (place, child) in places.zip(children) {
                    place.copy_from_slice(raw_child(child).as_bytes());
                }
            }
        }
    }
}

/// Returns how many entries fit into the bytes of a node.
pub(super) fn capacity(bytes: usize) -> usize {
    bytes / ENTRY - 1
}

/// Returns where the checksum of a block's node is: behind all entries that fit.
pub(super) fn checksum_at(bytes: usize) -> usize {
    (capacity(bytes) + 1) * ENTRY
}

fn extent(bytes: &[u8]) -> Extent {
    let raw = RawExtent::read_from_bytes(bytes).unwrap_or_else(|_| RawExtent::new_zeroed());
    let length = u32::from(raw.length.get());
    let is_unwritten = length > LENGTH_MAX;
    Extent {
        logical: raw.logical.get(),
        length: if is_unwritten {
            length - LENGTH_MAX
        } else {
            length
        },
        physical: u64::from(raw.physical_high.get()) << 32 | u64::from(raw.physical.get()),
        is_unwritten,
    }
}

fn raw_extent(of: &Extent) -> RawExtent {
    let more = if of.is_unwritten { LENGTH_MAX } else { 0 };
    RawExtent {
        logical: of.logical.into(),
        length: ((of.length + more) as u16).into(),
        physical_high: ((of.physical >> 32) as u16).into(),
        physical: (of.physical as u32).into(),
    }
}

fn child(bytes: &[u8]) -> Child {
    let raw = RawChild::read_from_bytes(bytes).unwrap_or_else(|_| RawChild::new_zeroed());
    Child {
        logical: raw.logical.get(),
        block: u64::from(raw.block_high.get()) << 32 | u64::from(raw.block.get()),
    }
}

fn raw_child(of: &Child) -> RawChild {
    RawChild {
        logical: of.logical.into(),
        block: (of.block as u32).into(),
        block_high: ((of.block >> 32) as u16).into(),
        unused: 0.into(),
    }
}

//! Virtual memory areas of a program, by address; none overlaps another.
//!
//! Pure: it handles neither frames nor page tables.

mod recent;

use alloc::collections::BTreeMap;

use bitflags::bitflags;

use crate::hw::memory::room;
use crate::model::errno::Errno;
use crate::model::vma::recent::Recent;

/// Size of a page, in bytes.
pub const PAGE: u64 = 4096;

/// Maximum number of VMAs of a program: Linux' default `vm.max_map_count`.
pub const VMAS_MAX: usize = 65_530;
/// Bound on the kernel memory for one VMA.
const VMA_BYTES: u64 = 4096;

bitflags! {
    /// Access to memory: PROT_READ and so on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Protection: u8 {
        /// Readable.
        const READ = 1;
        /// Writable.
        const WRITE = 2;
        /// Executable.
        const EXECUTE = 4;
    }
}

bitflags! {
    /// Attributes of a VMA.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct VmaFlags: u16 {
        /// A forked child finds zeros (`MADV_WIPEONFORK`).
        const WIPE_ON_FORK = 1;
        /// A forked child has nothing there (`MADV_DONTFORK`).
        const DONT_FORK = 2;
        /// Left out of core files (`MADV_DONTDUMP`).
        const DONT_DUMP = 4;
        /// Its pages are copies of a file's content.
        const FILE_COPY = 8;
        /// Of a private file mapping: the program may have changed pages.
        const MAY_BE_DIRTY = 16;
        /// Beyond the end of the mapped file: every access fails.
        const BEYOND_EOF = 32;
        /// A base mapping: its pages are the base's.
        const BASE = 64;
        /// Of a base mapping: it is not private.
        const SHARED = 128;
        /// Locked, as by mlock(2).
        const LOCKED = 256;
        /// Registers of a device: accessed by the program's own instructions only.
        const DEVICE = 512;
        /// Part of a file mapping.
        const ANY_FILE =
            Self::FILE_COPY.bits() | Self::BEYOND_EOF.bits() | Self::BASE.bits();
    }
}

/// How memory is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Its pages are populated at once.
    Now,
    /// Each page is locked when it is first accessed.
    OnFault,
}

/// Reference of a VMA to a shared-memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// Number of the object.
    pub number: u64,
    /// Address at which the object's first page would be.
    pub base: u64,
}

/// A virtual memory area. Both ends are multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// Address behind the last one.
    pub end: u64,
    /// Allowed accesses.
    pub protection: Protection,
    /// The shared-memory object it maps; `None` for private pages.
    pub object: Option<ObjectRef>,
    /// Attributes.
    pub flags: VmaFlags,
}

impl Vma {
    /// Creates a VMA of private pages.
    #[must_use]
    pub fn own(start: u64, end: u64, protection: Protection) -> Self {
        Self {
            start,
            end,
            protection,
            object: None,
            flags: VmaFlags::empty(),
        }
    }

    /// Whether it is a base mapping that is not shared.
    #[must_use]
    pub fn is_private_base(&self) -> bool {
        let kind = self.flags.intersection(VmaFlags::BASE | VmaFlags::SHARED);
        kind == VmaFlags::BASE
    }

    /// Whether it is a base mapping that only the proxy of the memory's owner has: pages that the
    /// program writes there are its own, so another proxy would have others.
    #[must_use]
    pub fn is_in_one_proxy(&self) -> bool {
        self.is_private_base() && self.protection.contains(Protection::WRITE)
    }

    fn bytes(&self) -> u64 {
        self.end - self.start
    }

    fn locked_bytes(&self) -> u64 {
        match self.flags.contains(VmaFlags::LOCKED) {
            true => self.bytes(),
            false => 0,
        }
    }

    /// Whether two VMAs differ only in their addresses.
    fn can_merge(&self, other: &Self) -> bool {
        (self.protection, self.object, self.flags) == (other.protection, other.object, other.flags)
    }
}

/// The VMAs of a program.
#[derive(Debug, Default)]
pub struct VmaMap {
    by_start: BTreeMap<u64, Vma>,
    bytes: u64,
    locked_bytes: u64,
    /// Number of VMAs that map each shared-memory object.
    object_vmas: BTreeMap<u64, u32>,
    gap_cache: GapCache,
    recent: Recent<Vma>,
}

/// Result of the last search for a gap, so that the next one can continue from there.
#[derive(Clone, Copy, Debug, Default)]
struct GapCache {
    /// Bounds of that search; nothing is known for others.
    bounds: (u64, u64),
    /// No gap that ends above this is larger than `largest`.
    below: u64,
    largest: u64,
}

impl VmaMap {
    /// Returns the VMA that contains an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Vma> {
        if let Some(vma) = self.recent.find(address) {
            return Some(vma);
        }
        let (_, vma) = self.by_start.range(..=address).next_back()?;
        if address >= vma.end {
            return None;
        }
        self.recent.note(address, vma.start..vma.end, *vma);
        Some(*vma)
    }

    /// Returns the VMAs that overlap a range, whole.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Vma> + '_ {
        let holding = self.find(start).filter(|_| start < end);
        let first = holding.map_or(start, |vma| vma.start);
        let found = self.by_start.range(first..end.max(first));
        found.map(|(_, vma)| *vma)
    }

    /// Returns the parts of VMAs within a range.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Vma> + '_ {
        self.overlapping(start, end).map(move |vma| Vma {
            start: vma.start.max(start),
            end: vma.end.min(end),
            ..vma
        })
    }

    /// Returns the first part within a range.
    #[must_use]
    pub fn first_within(&self, start: u64, end: u64) -> Option<Vma> {
        self.within(start, end).next()
    }

    /// Returns the first VMA that starts at or after an address.
    #[must_use]
    pub fn next(&self, address: u64) -> Option<Vma> {
        self.by_start.range(address..).next().map(|(_, vma)| *vma)
    }

    /// Returns the end of what VMAs cover from an address on without a gap, at most `end`.
    #[must_use]
    pub fn covered_end(&self, start: u64, end: u64) -> u64 {
        let mut next = start;
        for vma in self.within(start, end) {
            if vma.start != next {
                break;
            }
            next = vma.end;
        }
        next
    }

    /// Whether VMAs cover a range without a gap.
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        self.covered_end(start, end) >= end
    }

    /// Checks that `more` VMAs may be added, and that there is kernel memory for them.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn has_room(&self, more: usize) -> Result<(), Errno> {
        match self.by_start.len() + more <= VMAS_MAX {
            true => Ok(room::has_room(VMA_BYTES * more as u64)?),
            false => Err(Errno::ENOMEM),
        }
    }

    /// Checks that a range can be unmapped, which may split one VMA in two. As unmapping frees
    /// memory, it may use the kernel's reserve.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn can_unmap(&self, start: u64, end: u64) -> Result<(), Errno> {
        match self.find(start) {
            Some(vma) if vma.start < start && end < vma.end => {
                match self.by_start.len() < VMAS_MAX {
                    true => Ok(room::has_room_to_free(VMA_BYTES)?),
                    false => Err(Errno::ENOMEM),
                }
            }
            _ => Ok(()),
        }
    }

    /// Checks that VMAs can be split at both ends of a range.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn can_split(&self, start: u64, end: u64) -> Result<(), Errno> {
        let is_within = |&at: &u64| self.find(at).is_some_and(|vma| vma.start < at);
        match [start, end].iter().filter(|at| is_within(at)).count() {
            0 => Ok(()),
            splits => self.has_room(splits),
        }
    }

    /// Removes a range: see [`VmaMap::can_unmap`]. Calls `unmapped_object` with each shared-memory
    /// object that is no longer mapped.
    pub fn remove(&mut self, start: u64, end: u64, unmapped_object: &mut dyn FnMut(u64)) {
        let first = |vmas: &Self| vmas.overlapping(start, end).next();
        while let Some(vma) = first(self) {
            self.take(&vma);
            let left = Vma {
                end: start.max(vma.start),
                ..vma
            };
            let right = Vma {
                start: end.min(vma.end),
                ..vma
            };
            for rest in [left, right] {
                if rest.start < rest.end {
                    self.put(rest);
                }
            }
            if let Some(object) = vma.object
                && !self.object_vmas.contains_key(&object.number)
            {
                unmapped_object(object.number);
            }
        }
        let next = self.next(end).map_or(u64::MAX, |vma| vma.start);
        self.gap_cache.below = self.gap_cache.below.max(next);
    }

    /// Inserts a VMA in place of everything in its range, and merges it with like neighbours. That
    /// adds two VMAs at most: see [`VmaMap::has_room`].
    pub fn insert(&mut self, vma: Vma) {
        self.remove(vma.start, vma.end, &mut |_| {});
        let mut joined = vma;
        let before = self.by_start.range(..vma.start).next_back();
        let before = before.map(|(_, before)| *before);
        for other in [before, self.next(vma.end)].into_iter().flatten() {
            let touches = other.end == joined.start || joined.end == other.start;
            if touches && other.can_merge(&vma) {
                self.take(&other);
                joined.start = joined.start.min(other.start);
                joined.end = joined.end.max(other.end);
            }
        }
        self.put(joined);
    }

    fn put(&mut self, vma: Vma) {
        self.bytes += vma.bytes();
        self.locked_bytes += vma.locked_bytes();
        if let Some(object) = vma.object {
            *self.object_vmas.entry(object.number).or_default() += 1;
        }
        self.recent.clear();
        self.by_start.insert(vma.start, vma);
    }

    fn take(&mut self, vma: &Vma) {
        self.recent.clear();
        self.by_start.remove(&vma.start);
        self.bytes -= vma.bytes();
        self.locked_bytes -= vma.locked_bytes();
        let Some(object) = vma.object else {
            return;
        };
        if let Some(count) = self.object_vmas.get_mut(&object.number) {
            *count -= 1;
            if *count == 0 {
                self.object_vmas.remove(&object.number);
            }
        }
    }

    /// Changes the VMAs in a range, which are split at its ends: see [`VmaMap::can_split`].
    pub fn change(&mut self, start: u64, end: u64, change: impl Fn(Vma) -> Vma) {
        let mut next = start;
        while let Some(part) = self.first_within(next, end) {
            next = part.end;
            self.insert(change(part));
        }
    }

    /// Finds the highest aligned gap of a size between `bottom` and `top`.
    #[must_use]
    pub fn find_gap(&mut self, size: u64, alignment: u64, bottom: u64, top: u64) -> Option<u64> {
        let cached = self.gap_cache;
        let is_cached = cached.bounds == (bottom, top) && size > cached.largest;
        let (mut ceiling, mut largest) = match is_cached {
            true => (cached.below.min(top), cached.largest),
            false => (top, 0),
        };
        let below = self.by_start.range(..ceiling).rev();
        let mut floors = below
            .map(|(_, vma)| (vma.end, vma.start))
            .chain([(bottom, 0)]);
        let found = loop {
            let Some((end, next)) = floors.next() else {
                break None;
            };
            let floor = end.max(bottom);
            let start = ceiling.checked_sub(size).map(|at| at & !(alignment - 1));
            if let Some(start) = start.filter(|&at| floor <= at && at < ceiling) {
                break Some(start);
            }
            largest = largest.max(ceiling.saturating_sub(floor));
            ceiling = ceiling.min(next.max(bottom));
        };
        self.gap_cache = GapCache {
            bounds: (bottom, top),
            below: ceiling,
            largest,
        };
        found
    }

    /// Returns the size of all VMAs, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the size of those that are locked, in bytes.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        self.locked_bytes
    }

    /// Returns the number of VMAs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Returns all VMAs, ascending.
    pub fn all(&self) -> impl Iterator<Item = Vma> + '_ {
        self.by_start.values().copied()
    }

    /// Appends a VMA behind all others.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn push(&mut self, vma: Vma) -> Result<(), Errno> {
        self.has_room(1)?;
        self.put(vma);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! Calls on the program's memory.

use alloc::boxed::Box;

use bitflags::bitflags;
use insula_bare::memory::LARGE_SIZE;
use insula_bare::user::USER_END;

use crate::hw::memory::frames::{free_bytes, total_bytes};
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::{Lock, PAGE, Protection};
use crate::syscall::advice::{POPULATE_READ, POPULATE_WRITE, populate};
use crate::syscall::base_mapping;
use crate::syscall::change::{change, whole_pages};
use crate::syscall::delegate::finish;
use crate::syscall::file_mapping::{FilePart, is_of_hugetlbfs, map_copy};
use crate::syscall::memory_lock::{can_lock_new, lock_new};
use crate::task::address_space::remap::{Progress, Target};
use crate::task::address_space::stop::Stop;
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::base_mapping::{BaseMapping, Source};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

bitflags! {
    /// Flags of mmap(2).
    #[derive(Clone, Copy, Debug)]
    struct MapFlags: u64 {
        const SHARED = 0x01;
        const PRIVATE = 0x02;
        const FIXED = 0x10;
        const ANONYMOUS = 0x20;
        const LOW_32_BITS = 0x40;
        const GROWS_DOWN = 0x100;
        /// By `ld.so`, for segments of libraries.
        const DENY_WRITE = 0x800;
        const LOCKED = 0x2000;
        const POPULATE = 0x8000;
        const HUGE_TLB = 0x4_0000;
        const FIXED_NOREPLACE = 0x10_0000;
    }
}

impl MapFlags {
    /// Whether memory is to be in huge pages. It has such anyway, as far as the node does: no pool of
    /// them is needed.
    fn is_huge(self) -> bool {
        self.contains(Self::HUGE_TLB | Self::ANONYMOUS)
    }
}

/// Returns the size of a mapping, in whole pages or huge ones.
fn size_of(size: u64, flags: MapFlags) -> Result<u64, Errno> {
    // MAP_HUGE_SHIFT and MAP_HUGE_MASK: the size of a huge page, as a power of two.
    let log = flags.bits() >> 26 & 0x3f;
    let size = whole_pages(size)?;
    match flags.is_huge() {
        false => Ok(size),
        true if log == 0 || 1 << log == LARGE_SIZE => size
            .checked_next_multiple_of(LARGE_SIZE)
            .ok_or(Errno::ENOMEM),
        true => Err(Errno::EINVAL),
    }
}

fn protection(prot: u64) -> Protection {
    let protection = Protection::from_bits_truncate(prot as u8);
    // On this processor, what can be written or executed can be read.
    match protection.is_empty() {
        true => protection,
        false => protection | Protection::READ,
    }
}

/// Arguments of mmap(2).
#[derive(Clone, Copy, Debug)]
struct Mapping {
    place: Placement,
    size: u64,
    protection: Protection,
    flags: MapFlags,
    is_shared: bool,
    populates: bool,
    /// The file; `None` for anonymous memory.
    part: Option<FilePart>,
}

impl Mapping {
    fn of(a: [u64; 6]) -> Result<Self, Errno> {
        let [address, size, prot, flags, file, offset] = a;
        let flags = MapFlags::from_bits_retain(flags);
        let (protection, size) = (protection(prot), size_of(size, flags)?);
        if !flags.intersects(MapFlags::SHARED | MapFlags::PRIVATE) || !offset.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let is_fixed = flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
        if flags.is_huge() && is_fixed && !address.is_multiple_of(LARGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let place = if flags.contains(MapFlags::FIXED_NOREPLACE) {
            Placement::FixedNoReplace(address)
        } else if flags.contains(MapFlags::FIXED) {
            Placement::Fixed(address)
        } else {
            Placement::Hint(address)
        };
        let is_anonymous = flags.contains(MapFlags::ANONYMOUS);
        Ok(Self {
            place,
            size,
            protection,
            flags,
            // Both bits: MAP_SHARED_VALIDATE.
            is_shared: flags.contains(MapFlags::SHARED),
            populates: flags.contains(MapFlags::POPULATE) && protection.contains(Protection::READ),
            part: (!is_anonymous).then_some(FilePart { file, offset }),
        })
    }

    /// Maps a file: as the base's memory, but for data of libraries, which are copied.
    async fn map_file(&self, thread: &mut Thread, part: FilePart) -> Result<u64, Errno> {
        if part.file as u32 == thread.process.pages().mirror_fd() as u32 {
            return Err(Errno::EBADF);
        }
        thread.wait_for_leaving().await;
        let is_data = self.flags.contains(MapFlags::DENY_WRITE) && self.writes();
        if !self.is_shared && (is_data || thread.process.mm().is_mapped_by_several()) {
            return map_copy(thread, self.place, (self.size, self.protection), part).await;
        }
        let placed = MapFlags::FIXED
            | MapFlags::FIXED_NOREPLACE
            | MapFlags::LOW_32_BITS
            | MapFlags::GROWS_DOWN;
        if self.may_be_too_short() && is_of_hugetlbfs(thread, part.file).await? {
            return Err(Errno::EINVAL);
        }
        let mapping = BaseMapping {
            size: self.size,
            protection: self.protection,
            is_shared: self.is_shared,
            source: Source::File {
                file: part.file,
                offset: part.offset,
                flags: self.flags.difference(placed).bits(),
            },
        };
        let start = thread.map_base(self.place, mapping).await?;
        if self.populates {
            // As on Linux shared pages are not written for this.
            let access = match self.writes() && !self.is_shared {
                true => Protection::WRITE,
                false => Protection::READ,
            };
            // The mapping succeeds in any case.
            let _ = thread
                .populate_base((start, start + self.size), access)
                .await;
        }
        Ok(start)
    }

    /// Whether it would be a part of a huge page that begins at its start, if it were of hugetlbfs:
    /// Linux would map the whole, over what is there. Elsewhere Linux refuses it.
    fn may_be_too_short(&self) -> bool {
        match self.place {
            Placement::Hint(_) => false,
            Placement::Fixed(start) | Placement::FixedNoReplace(start) => {
                start.is_multiple_of(LARGE_SIZE) && !self.size.is_multiple_of(LARGE_SIZE)
            }
        }
    }

    fn writes(&self) -> bool {
        self.protection.contains(Protection::WRITE)
    }

    /// Maps anonymous memory.
    fn map(&self, space: &mut AddressSpace) -> Result<u64, Stop> {
        match self.is_shared {
            true => space.map_shared(self.place, self.size, self.protection),
            false => space.map(self.place, self.size, self.protection),
        }
    }

    /// Maps a file, or memory that is populated or locked.
    async fn map_with_base(self, thread: &mut Thread) -> Result<u64, Errno> {
        let lock = self.lock(thread);
        if lock.is_some() {
            let asks = self.flags.contains(MapFlags::LOCKED);
            can_lock_new(thread, self.size, asks).await?;
        }
        let start = match self.part {
            Some(part) => self.map_file(thread, part).await?,
            None => self.map_anonymous(thread).await?,
        };
        if let Some(lock) = lock {
            lock_new(thread, (start, start + self.size), lock).await;
        }
        Ok(start)
    }

    /// Returns how it is locked, if at all.
    fn lock(&self, thread: &Thread) -> Option<Lock> {
        let of_new = thread.process.space().lock_of_new();
        of_new.or(self.flags.contains(MapFlags::LOCKED).then_some(Lock::Now))
    }

    async fn map_anonymous(self, thread: &mut Thread) -> Result<u64, Errno> {
        let start = thread.change_space(move |space| self.map(space)).await?;
        if !self.populates {
            return Ok(start);
        }
        let advice = match self.writes() {
            true => POPULATE_WRITE,
            false => POPULATE_READ,
        };
        // The mapping succeeds in any case.
        let _ = populate(thread, (start, start + self.size), advice).await;
        Ok(start)
    }
}

/// mmap(2).
pub(super) fn mmap(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match Mapping::of(a) {
        Ok(mapping)
            if mapping.part.is_none() && !mapping.populates && mapping.lock(&thread).is_none() =>
        {
            change(thread, move |space| mapping.map(space))
        }
        Ok(mapping) => Flow::handler(thread, move |mut thread| async move {
            let result = mapping.map_with_base(&mut thread).await;
            finish(thread, result)
        }),
        Err(error) => finish(thread, Err(error)),
    }
}

/// mremap(2).
pub(super) fn mremap(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let (old, size, target) = match remap_arguments(&thread, a) {
        Ok(arguments) => arguments,
        Err(error) => return finish(thread, Err(error)),
    };
    let grown = size.saturating_sub(old.1 - old.0);
    let is_locked = thread.process.space().locked_bytes_within(old.0, PAGE) > 0;
    if grown > 0 && is_locked {
        return Flow::handler(thread, move |mut thread| async move {
            let result = grow_locked(&mut thread, old, (size, grown), target).await;
            finish(thread, result)
        });
    }
    if base_mapping::has_base_mappings(&thread, old.0, old.1) {
        return base_mapping::mremap(thread, old, size, target);
    }
    let mut progress = Progress::default();
    change(thread, move |space| {
        space.remap(old, size, target, &mut progress)
    })
}

/// Has a mapping that is locked grow.
async fn grow_locked(
    thread: &mut Thread,
    old: (u64, u64),
    (size, grown): (u64, u64),
    target: Target,
) -> Result<u64, Errno> {
    can_lock_new(thread, grown, false).await?;
    let start = match base_mapping::has_base_mappings(thread, old.0, old.1) {
        true => thread.remap_base(old, size, target).await?,
        false => {
            let mut progress = Progress::default();
            let operation =
                move |space: &mut AddressSpace| space.remap(old, size, target, &mut progress);
            thread.change_space(operation).await?
        }
    };
    lock_new(thread, (start + size - grown, start + size), Lock::Now).await;
    Ok(start)
}

/// Returns the old range, the new size, and where it may go.
fn remap_arguments(thread: &Thread, a: [u64; 6]) -> Result<((u64, u64), u64, Target), Errno> {
    const MAY_MOVE: u64 = 1;
    const FIXED: u64 = 2;
    let [old, old_size, size, flags, to, _] = a;
    let target = match flags {
        0 => Target::InPlace,
        MAY_MOVE => Target::MayMove,
        flags if flags == MAY_MOVE | FIXED => Target::Fixed(to),
        _ => return Err(Errno::EINVAL),
    };
    let size = whole_pages(size)?;
    if old_size == 0 {
        // Linux would map shared memory a second time.
        let is_there = thread.process.space().covers(old, old.saturating_add(PAGE));
        return Err(if is_there {
            Errno::EINVAL
        } else {
            Errno::EFAULT
        });
    }
    let old_size = whole_pages(old_size)?;
    let end = old.checked_add(old_size).ok_or(Errno::EINVAL)?;
    Ok(((old, end), size, target))
}

/// brk(2).
pub(super) fn brk(thread: Box<Thread>, [wanted, ..]: [u64; 6]) -> Flow {
    let lock = thread.process.space().lock_of_new();
    let end = thread.process.space().heap_end();
    match lock.filter(|_| wanted > end) {
        None => change(thread, move |space| space.move_heap_end(wanted)),
        Some(lock) => Flow::handler(thread, move |mut thread| async move {
            let result = grow_locked_heap(&mut thread, (end, wanted), lock).await;
            finish(thread, result)
        }),
    }
}

/// Has the heap grow, and locks what is new.
async fn grow_locked_heap(
    thread: &mut Thread,
    (end, wanted): (u64, u64),
    lock: Lock,
) -> Result<u64, Errno> {
    if can_lock_new(thread, wanted - end, false).await.is_err() {
        return Ok(end);
    }
    let grown = thread
        .change_space(move |space| space.move_heap_end(wanted))
        .await?;
    let new = (end.next_multiple_of(PAGE), grown.next_multiple_of(PAGE));
    if new.0 < new.1 {
        lock_new(thread, new, lock).await;
    }
    Ok(grown)
}

/// munmap(2).
pub(super) fn munmap(thread: Box<Thread>, [start, size, ..]: [u64; 6]) -> Flow {
    let end = whole_pages(size).map(|size| start.checked_add(size).filter(|&end| end <= USER_END));
    let (true, Ok(Some(end))) = (start.is_multiple_of(PAGE), end) else {
        return finish(thread, Err(Errno::EINVAL));
    };
    change(thread, move |space| {
        let (first, last) = space.bounds();
        let (start, end) = (start.max(first), end.min(last));
        // Outside the program's addresses nothing is mapped.
        if start < end {
            space.unmap(start, end)?;
        }
        Ok(0)
    })
}

/// mprotect(2).
pub(super) fn mprotect(thread: Box<Thread>, [start, size, prot, ..]: [u64; 6]) -> Flow {
    if !start.is_multiple_of(PAGE) {
        return finish(thread, Err(Errno::EINVAL));
    }
    if size == 0 {
        return finish(thread, Ok(0));
    }
    let Some(end) = whole_pages(size)
        .ok()
        .and_then(|size| start.checked_add(size))
    else {
        return finish(thread, Err(Errno::ENOMEM));
    };
    let protection = protection(prot);
    if base_mapping::has_base_mappings(&thread, start, end) {
        return base_mapping::mprotect(thread, (start, end), protection);
    }
    change(thread, move |space| {
        space.protect(start, end, protection).map(|()| 0)
    })
}

/// sysinfo(2): memory is the node's; load and processes are the base's.
pub(super) fn sysinfo(thread: Box<Thread>, [to, ..]: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = report_memory(&mut thread, to).await;
        finish(thread, result)
    })
}

async fn report_memory(thread: &mut Thread, to: u64) -> Result<u64, Errno> {
    /// Offsets in `struct sysinfo`: `totalram` and five more words; `totalhigh` and one more;
    /// `mem_unit`.
    const AT_MEMORY: u64 = 32;
    const AT_HIGH: u64 = 88;
    const AT_UNIT: u64 = 104;
    thread
        .remote_syscall(number::SYSINFO, [to, 0, 0, 0, 0, 0])
        .await?;
    let mut space = thread.process.space();
    let words = [total_bytes(), free_bytes(), 0, 0, 0, 0].map(u64::to_le_bytes);
    space.write(to.wrapping_add(AT_MEMORY), words.as_flattened())?;
    space.write(to.wrapping_add(AT_HIGH), &[0; 16])?;
    space.write(to.wrapping_add(AT_UNIT), &1_u32.to_le_bytes())?;
    Ok(0)
}

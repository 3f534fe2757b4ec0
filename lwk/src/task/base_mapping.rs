//! Base mappings of a program (insula_lwk.h): the proxy makes, changes and ends them, at the
//! program's addresses, by the base's own calls.

use insula_abi::ioctl;
use insula_abi::lwk::MIRROR_MAP_KEEP;

use crate::base::polling;
use crate::hw::clock;
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::{Protection, Vma, VmaFlags};
use crate::task::address_space::remap::Target;
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::mm::ChangeGuard;
use crate::task::thread::Thread;

/// `MREMAP_MAYMOVE`.
const MAY_MOVE: u64 = 1;
/// `MREMAP_FIXED`.
const MOVE_FIXED: u64 = 2;
/// Period in which is retried what waits for a vfork(2) to end.
const VFORK_RETRY_NS: u64 = 100_000;

/// A base mapping to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BaseMapping {
    /// Size in bytes, of whole pages.
    pub size: u64,
    /// Protection.
    pub protection: Protection,
    /// Others may share it.
    pub is_shared: bool,
    /// What is mapped.
    pub source: Source,
}

/// What a base mapping maps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// A part of a file: its descriptor and offset, and flags of mmap(2) but for those of the place.
    File {
        /// Descriptor.
        file: u64,
        /// Offset, a multiple of the page size.
        offset: u64,
        /// Flags.
        flags: u64,
    },
    /// What the proxy has mapped outside the program's addresses.
    Proxy {
        /// Its address.
        at: u64,
    },
    /// A System V shared-memory segment.
    Segment {
        /// Its id.
        id: u64,
        /// Flags of shmat(2).
        flags: u64,
    },
}

impl BaseMapping {
    /// Returns the flags of its VMA.
    fn flags(&self) -> VmaFlags {
        match (self.is_shared, self.protection.contains(Protection::WRITE)) {
            (true, _) => VmaFlags::SHARED,
            (false, true) => VmaFlags::MAY_BE_DIRTY,
            (false, false) => VmaFlags::empty(),
        }
    }

    /// Returns the call that makes it at an address, in place of what is there.
    fn call(&self, start: u64) -> (u64, [u64; 6]) {
        /// `MAP_FIXED`.
        const FIXED: u64 = 0x10;
        /// `SHM_REMAP`.
        const REMAP: u64 = 0o40_000;
        match self.source {
            Source::File {
                file,
                offset,
                flags,
            } => {
                let prot = self.protection.bits().into();
                let arguments = [start, self.size, prot, flags | FIXED, file, offset];
                (number::MMAP, arguments)
            }
            Source::Proxy { at } => (
                number::MREMAP,
                [at, self.size, self.size, MAY_MOVE | MOVE_FIXED, start, 0],
            ),
            Source::Segment { id, flags } => (number::SHMAT, [id, start, flags | REMAP, 0, 0, 0]),
        }
    }
}

impl Thread {
    /// Takes the change lock, to change base mappings.
    ///
    /// # Errors
    /// As of [`Thread::unshared`].
    async fn change_base_mappings(&mut self) -> Result<ChangeGuard, Errno> {
        let guard = self.process.mm().change().await;
        self.unshared(guard).await
    }

    /// Waits until no other proxy has the memory mapped, which would have to make the same change.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if that will not end, or not before this thread goes on.
    async fn unshared(&mut self, mut guard: ChangeGuard) -> Result<ChangeGuard, Errno> {
        while guard.mm().is_mapped_by_several() {
            let mm = alloc::sync::Arc::clone(guard.mm());
            drop(guard);
            let may_end = !mm.is_shared_for_good() || mm.is_any_leaving();
            if !may_end || self.process.blocks_parent() || self.must_not_block() {
                return Err(Errno::ENOMEM);
            }
            polling::sleep_until(clock::now_ns() + VFORK_RETRY_NS).await;
            guard = mm.change().await;
        }
        Ok(guard)
    }

    /// Waits a while for the proxies of processes that exit to unmap the memory.
    pub(crate) async fn wait_for_leaving(&mut self) {
        /// Most I/O has finished by then.
        const TIMEOUT_NS: u64 = 100_000_000;
        let mm = self.process.mm();
        let limit_ns = clock::now_ns() + TIMEOUT_NS;
        while mm.is_mapped_by_several() && mm.is_any_leaving() && clock::now_ns() < limit_ns {
            polling::sleep_until(clock::now_ns() + VFORK_RETRY_NS).await;
        }
    }

    /// Has the proxy map the mirror in place of a base mapping.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(super) async fn end_base_mapping(
        &mut self,
        guard: ChangeGuard,
        start: u64,
        end: u64,
    ) -> Result<ChangeGuard, Errno> {
        let guard = self.unshared(guard).await?;
        let part = guard.mm().space().base_mapping_within(start, end);
        if let Some(Vma { start, end, .. }) = part {
            self.map_mirror(start, end, 0).await?;
            guard.mm().space().end_base_mapping(start, end)?;
        }
        Ok(guard)
    }

    /// Has the proxy map the mirror in a range.
    pub(super) async fn map_mirror(
        &mut self,
        start: u64,
        end: u64,
        flags: u64,
    ) -> Result<(), Errno> {
        let request = self.put_scratch(&[start, end, flags]);
        let request = request.ok_or(Errno::ENOMEM)?;
        let mirror = self.process.pages().mirror_fd();
        let arguments = [mirror, ioctl::MIRROR_MAP.into(), request, 0, 0, 0];
        self.remote_syscall_as_kernel(number::IOCTL, arguments)
            .await
            .map(drop)
    }

    /// Has the proxy map the mirror everywhere, before it gets other memory.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(crate) async fn map_whole_mirror(&mut self) -> Result<(), Errno> {
        let parts = self.process.space().parts();
        for (start, end) in parts {
            self.map_mirror(start, end, 0).await?;
        }
        Ok(())
    }

    /// Ends all base mappings at once.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(crate) async fn end_all_base_mappings(&mut self) -> Result<(), Errno> {
        let (start, end) = self.process.pages().bounds();
        let guard = self.change_base_mappings().await?;
        if guard.mm().space().base_mapping_within(start, end).is_none() {
            return Ok(());
        }
        self.map_whole_mirror().await?;
        guard.mm().space().end_base_mapping(start, end)
    }

    /// Maps memory of the base.
    ///
    /// # Errors
    /// As of mmap(2) or shmat(2).
    pub(crate) async fn map_base(
        &mut self,
        place: Placement,
        mapping: BaseMapping,
    ) -> Result<u64, Errno> {
        let BaseMapping {
            size, protection, ..
        } = mapping;
        let guard = self.change_base_mappings().await?;
        let start = self.make_base_mapping(&guard, place, &mapping).await?;
        let end = start + size;
        let mut insert = move |space: &mut AddressSpace| {
            space.end_base_mapping(start, end)?;
            space.map(Placement::Fixed(start), size, protection)?;
            space.begin_base_mapping((start, end), mapping.flags())?;
            Ok(start)
        };
        let step = guard.begin(&mut insert);
        let inserted = self.finish_change(guard, step, insert).await;
        if inserted.is_err() {
            let _ = self.map_mirror(start, end, 0).await;
        }
        inserted
    }

    /// Has the proxy map memory of the base, at a place for it. Returns its address.
    async fn make_base_mapping(
        &mut self,
        guard: &ChangeGuard,
        place: Placement,
        mapping: &BaseMapping,
    ) -> Result<u64, Errno> {
        let size = mapping.size;
        let start = mapping.place(&mut guard.mm().space(), place)?;
        let (call, arguments) = mapping.call(start);
        let Err(error) = self.remote_syscall_as_kernel(call, arguments).await else {
            return Ok(start);
        };
        // A driver may have refused when the range was already free.
        let _ = self.map_mirror(start, start + size, MIRROR_MAP_KEEP).await;
        match error {
            // It may be a file that the base maps only where it chooses.
            Errno::EINVAL if place == Placement::Hint(0) => self.map_in_hole(guard, mapping).await,
            error => Err(error),
        }
    }

    /// Ends a base mapping by a call of the base.
    ///
    /// # Errors
    /// The call's.
    pub(crate) async fn unmap_base(
        &mut self,
        (start, end): (u64, u64),
        (call, arguments): (u64, [u64; 6]),
    ) -> Result<u64, Errno> {
        let guard = self.change_base_mappings().await?;
        let result = self.remote_syscall(call, arguments).await?;
        self.map_mirror(start, end, MIRROR_MAP_KEEP).await?;
        let mut remove = move |space: &mut AddressSpace| {
            space.end_base_mapping(start, end)?;
            space.unmap(start, end)?;
            Ok(result)
        };
        let step = guard.begin(&mut remove);
        self.finish_change(guard, step, remove).await
    }

    /// Changes the protection of a range with base mappings.
    ///
    /// # Errors
    /// As of mprotect(2).
    pub(crate) async fn protect_base(
        &mut self,
        start: u64,
        end: u64,
        protection: Protection,
    ) -> Result<u64, Errno> {
        let guard = self.change_base_mappings().await?;
        let covered_end = guard.mm().space().vmas().covered_end(start, end);
        let prot = protection.bits().into();
        self.for_each_base_mapping(number::MPROTECT, (start, covered_end), [prot, 0, 0, 0])
            .await?;
        let mut operation = move |space: &mut AddressSpace| {
            space.protect(start, end, protection)?;
            Ok(0)
        };
        let step = guard.begin(&mut operation);
        self.finish_change(guard, step, operation).await
    }

    /// Resizes a base mapping, and moves it if needed. Returns its address.
    ///
    /// # Errors
    /// As of mremap(2).
    pub(crate) async fn remap_base(
        &mut self,
        (start, end): (u64, u64),
        size: u64,
        target: Target,
    ) -> Result<u64, Errno> {
        let Some(end) = self.begin_remap((start, end), size, target).await? else {
            return Ok(start);
        };
        let guard = self.change_base_mappings().await?;
        // The base knows whether it is one mapping.
        let vma = guard.mm().space().base_mapping_over(start, end);
        let vma = vma.ok_or(Errno::EFAULT)?;
        let to = match target {
            Target::Fixed(to) => guard.mm().space().place(Placement::Fixed(to), size)?,
            _ if size == end - start => return Ok(start),
            _ => match self.grow_base((start, end), size).await {
                Ok(()) => start,
                Err(error) if target == Target::InPlace => return Err(error),
                Err(_) => guard.mm().space().place(Placement::Hint(0), size)?,
            },
        };
        if to != start {
            self.move_base((start, end), (to, size)).await?;
        }
        let mut operation = move |space: &mut AddressSpace| {
            space.end_base_mapping(start, end)?;
            space.end_base_mapping(to, to + size)?;
            space.unmap(start, end)?;
            space.map(Placement::Fixed(to), size, vma.protection)?;
            space.begin_base_mapping((to, to + size), vma.flags)?;
            Ok(to)
        };
        let step = guard.begin(&mut operation);
        self.finish_change(guard, step, operation).await
    }

    /// Unmaps what mremap(2) replaces and cuts off. Returns the end of what is left; `None` if there
    /// is nothing else to do.
    async fn begin_remap(
        &mut self,
        (start, end): (u64, u64),
        size: u64,
        target: Target,
    ) -> Result<Option<u64>, Errno> {
        if self.process.space().vmas().find(start).is_none() {
            return Err(Errno::EFAULT);
        }
        if let Target::Fixed(to) = target {
            self.clear_target((start, end), (to, size)).await?;
        }
        let kept_end = end.min(start.saturating_add(size));
        if kept_end < end {
            self.change_space(move |space| space.unmap(kept_end, end))
                .await?;
        }
        let is_done = kept_end < end && !matches!(target, Target::Fixed(_));
        Ok((!is_done).then_some(kept_end))
    }

    /// Unmaps the target of a move: as on Linux, even if the move fails then.
    async fn clear_target(
        &mut self,
        (start, end): (u64, u64),
        (to, size): (u64, u64),
    ) -> Result<(), Errno> {
        let to_end = to.checked_add(size).ok_or(Errno::EINVAL)?;
        if to < end && start < to_end {
            return Err(Errno::EINVAL);
        }
        self.change_space(move |space| space.unmap(to, to_end))
            .await
    }

    /// Has the proxy grow a base mapping in place, over a part of the mirror.
    async fn grow_base(&mut self, (start, end): (u64, u64), size: u64) -> Result<(), Errno> {
        let grown = start.checked_add(size).ok_or(Errno::ENOMEM)?;
        self.process
            .space()
            .place(Placement::FixedNoReplace(end), grown - end)
            .map_err(|_| Errno::ENOMEM)?;
        let hole = [end, grown - end, 0, 0, 0, 0];
        self.remote_syscall(number::MUNMAP, hole).await?;
        let arguments = [start, end - start, size, 0, 0, 0];
        let done = self.remote_syscall(number::MREMAP, arguments).await;
        if done.is_err() {
            self.map_mirror(end, grown, MIRROR_MAP_KEEP).await?;
        }
        done.map(drop)
    }

    /// Has the proxy move a base mapping, and map the mirror where it was.
    async fn move_base(
        &mut self,
        (start, end): (u64, u64),
        (to, size): (u64, u64),
    ) -> Result<(), Errno> {
        let arguments = [start, end - start, size, MAY_MOVE | MOVE_FIXED, to, 0];
        let moved = self.remote_syscall(number::MREMAP, arguments).await;
        // Even if it has failed, the target may be unmapped.
        self.map_mirror(to, to + size, MIRROR_MAP_KEEP).await?;
        moved?;
        self.map_mirror(start, end, MIRROR_MAP_KEEP).await
    }

    /// Checks that calls on a base mapping reach it: the own proxy has it.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(crate) fn can_call_for(&self, part: &Vma) -> Result<(), Errno> {
        match part.is_in_one_proxy() && !self.owns_memory() {
            true => Err(Errno::ENOMEM),
            false => Ok(()),
        }
    }

    /// Makes a call for each base mapping in a range, with its address, its size, and more.
    ///
    /// # Errors
    /// The first call's that fails; [`Errno::ENOMEM`] for a base mapping in another proxy only.
    pub(crate) async fn for_each_base_mapping(
        &mut self,
        call: u64,
        (start, end): (u64, u64),
        [third, fourth, fifth, sixth]: [u64; 4],
    ) -> Result<(), Errno> {
        let mut next = start;
        loop {
            let part = self.process.space().base_mapping_within(next, end);
            let Some(part) = part else {
                return Ok(());
            };
            self.can_call_for(&part)?;
            let Vma { start, end, .. } = part;
            let arguments = [start, end - start, third, fourth, fifth, sixth];
            self.remote_syscall(call, arguments).await?;
            next = end;
        }
    }
}

//! Where base mappings go. Some files the base maps only where it chooses itself, as the rings of
//! io_uring since Linux 6.5. With `MAP_32BIT` it chooses the lowest free range in a part of the
//! address space. The mirror leaves none free there; so the base chooses the hole that is made for it.

use insula_abi::lwk::MIRROR_MAP_KEEP;
use insula_bare::memory::LARGE_SIZE;

use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::PAGE;
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::base_mapping::{BaseMapping, Source};
use crate::task::mm::ChangeGuard;
use crate::task::thread::Thread;

/// `MAP_32BIT`.
const LOW_32_BITS: u64 = 0x40;
/// What Linux chooses from then: above a random address below 1 GiB + 32 MiB, and below 2 GiB.
const BOTTOM: u64 = 0x4200_0000;
const TOP: u64 = 0x8000_0000;

impl BaseMapping {
    /// Chooses its address. A file may be one of hugetlbfs, of which Linux maps whole pages: so that it
    /// refuses a part of such a page, the part does not begin where a page could.
    ///
    /// # Errors
    /// As of mmap(2).
    pub(super) fn place(&self, space: &mut AddressSpace, place: Placement) -> Result<u64, Errno> {
        let size = self.size;
        let is_file = matches!(self.source, Source::File { .. });
        let is_part = |start: u64| {
            is_file && start.is_multiple_of(LARGE_SIZE) && !size.is_multiple_of(LARGE_SIZE)
        };
        let start = space.place(place, size)?;
        if !matches!(place, Placement::Hint(_)) || !is_part(start) {
            return Ok(start);
        }
        let start = space.place(Placement::Hint(0), size + PAGE)?;
        Ok(if is_part(start) { start + PAGE } else { start })
    }
}

impl Thread {
    /// Has the proxy map a file where the base chooses: in a hole that the program does not use.
    /// Returns its address.
    ///
    /// # Errors
    /// As of mmap(2).
    pub(super) async fn map_in_hole(
        &mut self,
        guard: &ChangeGuard,
        mapping: &BaseMapping,
    ) -> Result<u64, Errno> {
        let size = mapping.size;
        let start = guard.mm().space().find_gap(size, BOTTOM, TOP);
        let start = start.ok_or(Errno::ENOMEM)?;
        let hole = [start, size, 0, 0, 0, 0];
        self.remote_syscall_as_kernel(number::MUNMAP, hole).await?;
        let made = self.map_anywhere(mapping).await;
        if made == Ok(start) {
            return made;
        }
        if let Ok(elsewhere) = made {
            let wrong = [elsewhere, size, 0, 0, 0, 0];
            self.remote_syscall_as_kernel(number::MUNMAP, wrong).await?;
        }
        self.map_mirror(start, start + size, MIRROR_MAP_KEEP)
            .await?;
        Err(made.err().unwrap_or(Errno::ENOMEM))
    }

    async fn map_anywhere(&mut self, mapping: &BaseMapping) -> Result<u64, Errno> {
        let Source::File {
            file,
            offset,
            flags,
        } = mapping.source
        else {
            return Err(Errno::EINVAL);
        };
        let prot = mapping.protection.bits().into();
        let arguments = [0, mapping.size, prot, flags | LOW_32_BITS, file, offset];
        self.remote_syscall_as_kernel(number::MMAP, arguments).await
    }
}

//! Private base mappings become memory of the node when a program is to write them.

use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::{PAGE, Vma, VmaFlags};
use crate::task::address_space::remap::{Progress, Target};
use crate::task::thread::Thread;

impl Thread {
    /// Replaces the private base mappings in a range, which will be written.
    pub(super) async fn make_writable(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let mut next = start;
        loop {
            let part = self.process.space().base_mapping_within(next, end);
            let Some(part) = part else {
                return Ok(());
            };
            if !part.flags.contains(VmaFlags::SHARED) {
                self.copy_base(part).await?;
            }
            next = part.end;
        }
    }

    /// Replaces a base mapping by memory of the node with the same content.
    async fn copy_base(&mut self, part: Vma) -> Result<(), Errno> {
        let Vma { start, end, .. } = part;
        let size = end - start;
        let buffer = self.map_buffer(size).await?;
        let copied = match self.copy_own_memory(start, buffer, size).await {
            Ok(copied) => copied,
            Err(error) => {
                self.unmap_buffer(buffer, size).await?;
                return Err(error);
            }
        };
        let mut progress = Progress::default();
        let from = (buffer, buffer + size);
        let moved = self
            .change_space(move |space| space.remap(from, size, Target::Fixed(start), &mut progress))
            .await;
        if let Err(error) = moved {
            self.unmap_buffer(buffer, size).await?;
            return Err(error);
        }
        let filled = start + copied.next_multiple_of(PAGE).min(size);
        self.change_space(move |space| {
            space.mark_file((start, filled, end), VmaFlags::MAY_BE_DIRTY)?;
            space.protect(start, end, part.protection)
        })
        .await
    }

    /// Has the base copy memory of the proxy. Returns the number of bytes up to the first page
    /// that cannot be read.
    pub(crate) async fn copy_own_memory(
        &mut self,
        from: u64,
        to: u64,
        size: u64,
    ) -> Result<u64, Errno> {
        let ranges = self.put_scratch(&[to, size, from, size]);
        let ranges = ranges.ok_or(Errno::ENOMEM)?;
        let pid = self.process.pages().pid();
        let arguments = [pid, ranges, 1, ranges + 16, 1, 0];
        let copied = self.remote_syscall_as_kernel(number::PROCESS_VM_READV, arguments);
        match copied.await {
            // All of it is beyond the end of the file.
            Err(Errno::EFAULT) => Ok(0),
            result => result,
        }
    }
}

//! Calls on ranges with base mappings, which the base executes for these, and this kernel for all
//! else.

use alloc::boxed::Box;

use insula_bare::user::USER_END;

use crate::hw::memory::room::zeroed;
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::{PAGE, Protection, VmaFlags};
use crate::syscall::delegate::finish;
use crate::task::address_space::remap::Target;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Whether a range has base mappings.
pub(super) fn has_base_mappings(thread: &Thread, start: u64, end: u64) -> bool {
    let space = thread.process.space();
    space.base_mapping_within(start, end).is_some()
}

/// Returns the end of a range of pages that is mapped without gaps.
///
/// # Errors
/// [`Errno::EINVAL`] if it does not start at a page; [`Errno::ENOMEM`] if it is not mapped.
fn mapped_end(thread: &Thread, start: u64, size: u64) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let end = start.checked_add(size).ok_or(Errno::ENOMEM)?;
    let end = end.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
    match start == end || thread.process.space().covers(start, end) {
        true => Ok(end),
        false => Err(Errno::ENOMEM),
    }
}

/// Has the base make a call for the base mappings in a range: with their addresses and sizes, and
/// the caller's third argument. There is nothing to do for other memory.
fn call_for_base(thread: Box<Thread>, call: u64, [start, size, third, ..]: [u64; 6]) -> Flow {
    let end = match mapped_end(&thread, start, size) {
        Ok(end) => end,
        Err(error) => return finish(thread, Err(error)),
    };
    if !has_base_mappings(&thread, start, end) {
        return finish(thread, Ok(0));
    }
    Flow::handler(thread, move |mut thread| async move {
        let more = [third, 0, 0, 0];
        let called = thread.for_each_base_mapping(call, (start, end), more).await;
        finish(thread, called.map(|()| 0))
    })
}

/// msync(2).
pub(super) fn msync(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    call_for_base(thread, number::MSYNC, a)
}

/// mincore(2).
pub(super) fn mincore(thread: Box<Thread>, [start, size, to, ..]: [u64; 6]) -> Flow {
    let end = match mapped_end(&thread, start, size) {
        Ok(end) => end,
        Err(error) => return finish(thread, Err(error)),
    };
    let to_end = to.checked_add((end - start) / PAGE);
    if to_end.is_none_or(|to_end| to_end > USER_END) {
        return finish(thread, Err(Errno::EFAULT));
    }
    Flow::handler(thread, move |mut thread| async move {
        let result = report_present(&mut thread, (start, end), to).await;
        finish(thread, result.map(|()| 0))
    })
}

/// Writes a byte for each page of a range: 1 if it is present.
async fn report_present(
    thread: &mut Thread,
    (start, end): (u64, u64),
    to: u64,
) -> Result<(), Errno> {
    let mut next = start;
    while next < end {
        let vma = thread.process.space().vmas().first_within(next, end);
        let vma = vma.ok_or(Errno::ENOMEM)?;
        let place = to.wrapping_add((vma.start - start) / PAGE);
        if vma.flags.contains(VmaFlags::BASE) {
            thread.can_call_for(&vma)?;
            let arguments = [vma.start, vma.end - vma.start, place, 0, 0, 0];
            thread.remote_syscall(number::MINCORE, arguments).await?;
        } else {
            report_own_present(thread, (vma.start, vma.end), place)?;
        }
        next = vma.end;
    }
    Ok(())
}

/// The same for memory of the node.
fn report_own_present(thread: &Thread, (start, end): (u64, u64), to: u64) -> Result<(), Errno> {
    /// Pages reported at once.
    const PART: u64 = 4096;
    let mut space = thread.process.space();
    let mut next = start;
    while next < end {
        let part_end = end.min(next + PART * PAGE);
        let mut present = zeroed(((part_end - next) / PAGE) as usize)?;
        let mut at = next;
        while let Some((from, until)) = space.present_range(at, part_end) {
            let pages = (from - next) / PAGE..(until - next) / PAGE;
            present[pages.start as usize..pages.end as usize].fill(1);
            at = until;
        }
        space.write(to.wrapping_add((next - start) / PAGE), &present)?;
        next = part_end;
    }
    Ok(())
}

/// mremap(2) of a base mapping.
pub(super) fn mremap(thread: Box<Thread>, old: (u64, u64), size: u64, target: Target) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = thread.remap_base(old, size, target).await;
        finish(thread, result)
    })
}

/// mprotect(2) on a range with base mappings.
pub(super) fn mprotect(
    thread: Box<Thread>,
    (start, end): (u64, u64),
    protection: Protection,
) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = thread.protect_base(start, end, protection).await;
        finish(thread, result)
    })
}

//! System V shared memory: segments are the base's, and attached as base mappings.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number::{SHMCTL, SHMDT};
use crate::model::vma::{PAGE, Protection};
use crate::syscall::delegate::finish;
use crate::task::address_space::Placement;
use crate::task::base_mapping::{BaseMapping, Source};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// `SHM_RDONLY`, `SHM_RND`, `SHM_REMAP`, `SHM_EXEC`.
const READ_ONLY: u64 = 0o10_000;
const ROUND_DOWN: u64 = 0o20_000;
const REMAP: u64 = 0o40_000;
const EXECUTE: u64 = 0o100_000;

/// shmat(2).
pub(super) fn shmat(thread: Box<Thread>, [id, address, flags, ..]: [u64; 6]) -> Flow {
    let place = match placement(address, flags) {
        Ok(place) => place,
        Err(error) => return finish(thread, Err(error)),
    };
    Flow::handler(thread, move |mut thread| async move {
        let result = attach(&mut thread, place, id, flags).await;
        finish(thread, result)
    })
}

/// Decides where a segment may be attached.
fn placement(address: u64, flags: u64) -> Result<Placement, Errno> {
    let place = match flags & ROUND_DOWN {
        0 => address,
        _ => address & !(PAGE - 1),
    };
    match (place, flags & REMAP) {
        (0, 0) if address == 0 => Ok(Placement::Hint(0)),
        (0, _) => Err(Errno::EINVAL),
        (place, _) if !place.is_multiple_of(PAGE) => Err(Errno::EINVAL),
        (place, 0) => Ok(Placement::FixedNoReplace(place)),
        (place, _) => Ok(Placement::Fixed(place)),
    }
}

fn protection(flags: u64) -> Protection {
    let mut protection = Protection::READ;
    protection.set(Protection::WRITE, flags & READ_ONLY == 0);
    protection.set(Protection::EXECUTE, flags & EXECUTE != 0);
    protection
}

async fn attach(thread: &mut Thread, place: Placement, id: u64, flags: u64) -> Result<u64, Errno> {
    let mapping = BaseMapping {
        size: size(thread, id).await?.next_multiple_of(PAGE),
        protection: protection(flags),
        is_shared: true,
        source: Source::Segment { id, flags },
    };
    let attached = thread.map_base(place, mapping).await;
    let start = attached.map_err(|error| match error {
        // As of shmat(2).
        Errno::EEXIST => Errno::EINVAL,
        error => error,
    })?;
    thread.process.space().note_segment(start, mapping.size);
    Ok(start)
}

/// Returns the size of a segment, in bytes.
async fn size(thread: &mut Thread, id: u64) -> Result<u64, Errno> {
    /// `IPC_STAT`.
    const STAT: u64 = 2;
    /// Offset of `shm_segsz` in `struct shmid64_ds`.
    const AT_SIZE: u64 = 48;
    let buffer = thread.map_buffer(PAGE).await?;
    let stat = [id, STAT, buffer, 0, 0, 0];
    let found = thread.remote_syscall(SHMCTL, stat).await;
    let mut bytes = [0; 8];
    let read = thread.process.space().read(buffer + AT_SIZE, &mut bytes);
    thread.unmap_buffer(buffer, PAGE).await?;
    found?;
    read?;
    let size = u64::from_le_bytes(bytes);
    // A program may have written to the buffer.
    size.checked_next_multiple_of(PAGE).ok_or(Errno::EINVAL)
}

/// shmdt(2).
pub(super) fn shmdt(thread: Box<Thread>, [start, ..]: [u64; 6]) -> Flow {
    let size = thread.process.space().segment_size(start);
    let Some(size) = size else {
        return finish(thread, Err(Errno::EINVAL));
    };
    Flow::handler(thread, move |mut thread| async move {
        let call = (SHMDT, [start, 0, 0, 0, 0, 0]);
        let result = thread.unmap_base((start, start + size), call).await;
        if result.is_ok() {
            thread.process.space().forget_segment(start);
        }
        finish(thread, result)
    })
}

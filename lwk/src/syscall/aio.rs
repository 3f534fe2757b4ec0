//! Linux' asynchronous I/O: the base executes it; its ring, which the C library reads, is a base
//! mapping.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number::{IO_DESTROY, IO_SETUP, PROCESS_VM_READV};
use crate::model::vma::{PAGE, Protection};
use crate::syscall::delegate::finish;
use crate::task::address_space::Placement;
use crate::task::base_mapping::{BaseMapping, Source};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// io_setup(2).
pub(super) fn io_setup(thread: Box<Thread>, [events, to, ..]: [u64; 6]) -> Flow {
    let mut context = [0; 8];
    let read = thread.process.space().read(to, &mut context);
    match read {
        Ok(()) if context == [0; 8] => {}
        Ok(()) => return finish(thread, Err(Errno::EINVAL)),
        Err(error) => return finish(thread, Err(error)),
    }
    Flow::handler(thread, move |mut thread| async move {
        let result = set_up(&mut thread, events, to).await;
        finish(thread, result)
    })
}

/// Sets up a context, moves its ring to the program's addresses, and stores its id, which is the
/// ring's address.
async fn set_up(thread: &mut Thread, events: u64, to: u64) -> Result<u64, Errno> {
    let buffer = thread.map_buffer(PAGE).await?;
    let made = make(thread, events, buffer).await;
    thread.unmap_buffer(buffer, PAGE).await?;
    let (at, size) = made?;
    let mapping = BaseMapping {
        size,
        protection: Protection::READ | Protection::WRITE,
        is_shared: true,
        source: Source::Proxy { at },
    };
    let ring = match thread.map_base(Placement::Hint(0), mapping).await {
        Ok(ring) => ring,
        Err(error) => {
            let destroy = [at, 0, 0, 0, 0, 0];
            thread.remote_syscall_as_kernel(IO_DESTROY, destroy).await?;
            return Err(error);
        }
    };
    thread.process.space().note_segment(ring, size);
    let written = thread.process.space().write(to, &ring.to_le_bytes());
    if written.is_err() {
        destroy(thread, ring).await?;
        return Err(Errno::EFAULT);
    }
    Ok(0)
}

/// Makes a context. Returns address and size of its ring in the proxy.
async fn make(thread: &mut Thread, events: u64, buffer: u64) -> Result<(u64, u64), Errno> {
    /// Size of `struct aio_ring`, and of an event in it.
    const UNIT: u64 = 32;
    let arguments = [events, buffer, 0, 0, 0, 0];
    thread.remote_syscall(IO_SETUP, arguments).await?;
    let mut word = [0; 8];
    thread.process.space().read(buffer, &mut word)?;
    let at = u64::from_le_bytes(word);
    // The ring's id, and the number of events for which it has room.
    copy_proxy_memory(thread, at, buffer, 8).await?;
    thread.process.space().read(buffer, &mut word)?;
    let room = u64::from_le_bytes(word) >> 32;
    Ok((at, (UNIT + room * UNIT).next_multiple_of(PAGE)))
}

/// Has the base copy memory of the proxy to the program's.
async fn copy_proxy_memory(
    thread: &mut Thread,
    from: u64,
    to: u64,
    size: u64,
) -> Result<u64, Errno> {
    let ranges = thread.put_scratch(&[to, size, from, size]);
    let ranges = ranges.ok_or(Errno::ENOMEM)?;
    let pid = thread.process.pages().pid();
    let arguments = [pid, ranges, 1, ranges + 16, 1, 0];
    let copied = thread.remote_syscall_as_kernel(PROCESS_VM_READV, arguments);
    copied.await
}

/// io_destroy(2).
pub(super) fn io_destroy(thread: Box<Thread>, [context, ..]: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = destroy(&mut thread, context).await;
        finish(thread, result)
    })
}

async fn destroy(thread: &mut Thread, context: u64) -> Result<u64, Errno> {
    let size = thread.process.space().segment_size(context);
    let size = size.ok_or(Errno::EINVAL)?;
    let call = (IO_DESTROY, [context, 0, 0, 0, 0, 0]);
    let result = thread.unmap_base((context, context + size), call).await?;
    thread.process.space().forget_segment(context);
    Ok(result)
}

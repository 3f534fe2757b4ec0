//! Calls that change the address space.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::vma::PAGE;
use crate::syscall::delegate::finish;
use crate::task::address_space::AddressSpace;
use crate::task::address_space::stop::Stop;
use crate::task::flow::Flow;
use crate::task::mm::Step;
use crate::task::thread::Thread;

/// Rounds a size up to whole pages.
///
/// # Errors
/// [`Errno::EINVAL`] if it is 0; [`Errno::ENOMEM`] if it is too large.
pub(super) fn whole_pages(size: u64) -> Result<u64, Errno> {
    let size = size.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
    if size == 0 {
        Err(Errno::EINVAL)
    } else {
        Ok(size)
    }
}

/// Changes the address space: at once, unless somebody else is changing it, or the base has to
/// invalidate a range first. `operation` is called again after each invalidation that it asks for.
pub(super) fn change(
    thread: Box<Thread>,
    mut operation: impl FnMut(&mut AddressSpace) -> Result<u64, Stop> + Send + 'static,
) -> Flow {
    let Some(guard) = thread.process.mm().try_change() else {
        return Flow::handler(thread, |mut thread| async move {
            let result = thread.change_space(operation).await;
            finish(thread, result)
        });
    };
    match guard.begin(&mut operation) {
        Step::Done(result) => {
            drop(guard);
            finish(thread, result)
        }
        step => Flow::handler(thread, |mut thread| async move {
            let result = thread.finish_change(guard, step, operation).await;
            finish(thread, result)
        }),
    }
}

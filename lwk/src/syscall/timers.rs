//! POSIX timers, which the base runs. This kernel records which of them signal a thread.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number;
use crate::model::signals::timer::Timer;
use crate::syscall::delegate::finish;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// timer_create(2).
pub(super) fn create(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = create_timer(&mut thread, a).await;
        finish(thread, result)
    })
}

async fn create_timer(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    let [_, event, to, ..] = a;
    // If a page is missing, the call is made again: not once the timer is there.
    let can_write = thread.process.space().can_write(to, to.saturating_add(4));
    for result in [can_write, is_to_thread(thread, event).map(drop)] {
        if result == Err(Errno::EBASEPAGE) {
            return Err(Errno::EBASEPAGE);
        }
    }
    thread.process.signals().reserve_timer()?;
    thread.remote_syscall(number::TIMER_CREATE, a).await?;
    let id = thread.with_base_pages(|thread| id_at(thread, to)).await?;
    let to_thread = thread
        .with_base_pages(|thread| is_to_thread(thread, event))
        .await?;
    thread.process.signals().add_timer(Timer { id, to_thread });
    Ok(0)
}

fn id_at(thread: &Thread, at: u64) -> Result<u32, Errno> {
    let mut id = [0; 4];
    thread.process.space().read(at, &mut id)?;
    Ok(u32::from_le_bytes(id))
}

/// Whether a `struct sigevent` names a thread; 0 stands for none.
fn is_to_thread(thread: &Thread, event: u64) -> Result<bool, Errno> {
    const NOTIFY_AT: u64 = 12;
    /// `SIGEV_THREAD_ID`.
    const THREAD_ID: u32 = 4;
    if event == 0 {
        return Ok(false);
    }
    let mut notify = [0; 4];
    let at = event.wrapping_add(NOTIFY_AT);
    thread.process.space().read(at, &mut notify)?;
    Ok(u32::from_le_bytes(notify) & THREAD_ID != 0)
}

/// timer_delete(2).
pub(super) fn delete(thread: Box<Thread>, [id, ..]: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = delete_timer(&mut thread, id).await;
        finish(thread, result)
    })
}

async fn delete_timer(thread: &mut Thread, id: u64) -> Result<u64, Errno> {
    let result = thread
        .remote_syscall(number::TIMER_DELETE, [id, 0, 0, 0, 0, 0])
        .await?;
    thread.process.signals().remove_timer(id as u32);
    Ok(result)
}

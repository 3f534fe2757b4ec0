//! ioperm(2): I/O ports, where the node was given that right.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use insula_bare::ports::{PORTS, PortSet};

use crate::hw::memory::room::has_room;
use crate::model::errno::Errno;
use crate::model::number;
use crate::syscall::delegate::finish;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Whether programs of this node may have ports. A port reaches beyond the node: who starts one decides.
static ALLOWED: AtomicBool = AtomicBool::new(false);

/// Lets programs have ports, as far as the base permits each of them to.
pub fn allow() {
    ALLOWED.store(true, Ordering::Relaxed);
}

/// ioperm(2).
pub(super) fn ioperm(thread: Box<Thread>, [first, count, is_on, ..]: [u64; 6]) -> Flow {
    if !ALLOWED.load(Ordering::Relaxed) {
        return finish(thread, Err(Errno::EPERM));
    }
    Flow::handler(thread, move |mut thread| async move {
        let result = set(&mut thread, (first, count), is_on as u32 != 0).await;
        finish(thread, result.map(|()| 0))
    })
}

/// The proxy gets the ports as well: so it is the base that decides whether the program may, by its
/// capabilities (`CAP_SYS_RAWIO`) and by lockdown.
async fn set(thread: &mut Thread, range: (u64, u64), is_on: bool) -> Result<(), Errno> {
    let (first, end) = ports(range)?;
    let arguments = [range.0, range.1, u64::from(is_on), 0, 0, 0];
    thread
        .remote_syscall_as_kernel(number::IOPERM, arguments)
        .await?;
    has_room(size_of::<PortSet>() as u64).map_err(|_| Errno::ENOMEM)?;
    let mut set = thread.ports.as_deref().cloned().unwrap_or_default();
    set.set(first, end, is_on);
    thread.ports = (!set.is_empty()).then(|| Arc::new(set));
    Ok(())
}

/// The first port, and the end.
///
/// # Errors
/// [`Errno::EINVAL`] if there are none, or not all of them can be given to programs.
fn ports((first, count): (u64, u64)) -> Result<(u16, u16), Errno> {
    let end = first.checked_add(count).filter(|end| *end > first);
    let end = end.and_then(|end| u16::try_from(end).ok());
    match (u16::try_from(first), end) {
        (Ok(first), Some(end)) if end <= PORTS => Ok((first, end)),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_cannot_be_given_are_refused() {
        assert_eq!(ports((0xcf9, 1)), Ok((0xcf9, 0xcfa)));
        assert_eq!(ports((0, u64::from(PORTS))), Ok((0, PORTS)));
        for range in [
            (0x64, 0),
            (u64::from(PORTS), 1),
            (0xcff, 2),
            (1 << 16, 1),
            (1, u64::MAX),
            (u64::MAX, 2),
        ] {
            assert_eq!(ports(range), Err(Errno::EINVAL), "{range:x?}");
        }
    }
}

//! Signal masks.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::signals::set::Set;
use crate::syscall::call::{Call, MaskArgument};
use crate::syscall::delegate::{delegate_call, finish};
use crate::syscall::proxy_mask::pending_in_proxy;
use crate::syscall::signals::arguments::{SET_SIZE, checked_size, read_set};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// rt_sigprocmask(2).
pub(crate) fn mask(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    let [how, set, old, size, ..] = a;
    checked_size(size)?;
    let before = thread.process.signals().blocked(thread.id);
    if set != 0 {
        let set = read_set(thread, set)?;
        let blocked = match how {
            0 => before | set,
            1 => before & !set,
            2 => set,
            _ => return Err(Errno::EINVAL),
        };
        thread.process.signals().block(thread.id, blocked);
    }
    if old != 0 {
        thread.process.space().write(old, &before.to_le_bytes())?;
    }
    Ok(0)
}

/// rt_sigpending(2).
pub(crate) fn pending(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    if thread.process.signals_of_fds() == 0 {
        let result = report_pending(&thread, a, 0);
        return finish(thread, result);
    }
    Flow::handler(thread, move |mut thread| async move {
        let others = pending_in_proxy(&mut thread).await;
        let result = report_pending(&thread, a, others);
        finish(thread, result)
    })
}

/// Reports what is pending here, and `others`.
fn report_pending(thread: &Thread, [to, size, ..]: [u64; 6], others: Set) -> Result<u64, Errno> {
    if size > SET_SIZE {
        return Err(Errno::EINVAL);
    }
    let pending = thread.process.signals().pending(thread.id) | others;
    let bytes = pending.to_le_bytes();
    thread.process.space().write(to, &bytes[..size as usize])?;
    Ok(0)
}

/// Changes the thread's signal mask until its call is over.
pub(crate) fn block_during_call(thread: &mut Thread, set: Set) {
    let before = thread.process.signals().block(thread.id, set);
    thread.saved_blocked = Some(before);
}

/// Delegates a call with a signal mask argument. The mask is set here, and the base gets none.
pub(crate) fn delegate_masked(
    mut thread: Box<Thread>,
    call: &'static Call,
    a: [u64; 6],
    mask: MaskArgument,
) -> Flow {
    let (MaskArgument::Address(at) | MaskArgument::Structure(at)) = mask;
    let mut arguments = a;
    let given = core::mem::take(&mut arguments[at]);
    let set = match mask {
        _ if given == 0 => Ok(None),
        MaskArgument::Structure(_) => indirect_set(&mut thread, given),
        MaskArgument::Address(_) => {
            checked_size(a[at + 1]).and_then(|()| read_set(&mut thread, given).map(Some))
        }
    };
    match set {
        Ok(set) => {
            if let Some(set) = set {
                block_during_call(&mut thread, set);
            }
            delegate_call(thread, call, arguments)
        }
        Err(error) => finish(thread, Err(error)),
    }
}

/// Reads a set by a structure of its address and its size.
fn indirect_set(thread: &mut Thread, address: u64) -> Result<Option<Set>, Errno> {
    let set = read_set(thread, address)?;
    let size = read_set(thread, address.wrapping_add(SET_SIZE))?;
    match set {
        0 => Ok(None),
        set => checked_size(size).and_then(|()| read_set(thread, set).map(Some)),
    }
}

//! rt_sigaction(2).

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number;
use crate::model::signals::action::Action;
use crate::model::signals::number::CHLD;
use crate::model::signals::set::{TTY_STOP, UNBLOCKABLE, bit};
use crate::model::vma::PAGE;
use crate::syscall::delegate::finish;
use crate::syscall::signals::arguments::{SET_SIZE, checked_size, signal_of};
use crate::task::flow::Flow;
use crate::task::proxy_signals;
use crate::task::thread::Thread;

/// rt_sigaction(2).
pub(crate) fn action(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [number, _, old, ..] = a;
    let (before, new) = match set_action(&thread, a) {
        Ok(actions) => actions,
        Err(error) => return finish(thread, Err(error)),
    };
    let signal = number as u32;
    let ignores = |action: &Action| action.handler == Action::IGNORE;
    let is_mirrored = match signal {
        CHLD => child_flags(&new) != child_flags(&before),
        signal => bit(signal) & TTY_STOP != 0 && ignores(&new) != ignores(&before),
    };
    if !is_mirrored {
        let result = report_action(&thread, old, &before);
        return finish(thread, result);
    }
    Flow::handler(thread, move |mut thread| async move {
        let mirrored = match signal {
            CHLD => mirror_child_flags(&mut thread, &new).await,
            signal => {
                proxy_signals::mirror_action(&mut thread, signal).await;
                Ok(0)
            }
        };
        let result = mirrored.and_then(|_| report_action(&thread, old, &before));
        finish(thread, result)
    })
}

/// Sets an action if a new one is given. Returns the old one, and what holds from now on.
fn set_action(thread: &Thread, a: [u64; 6]) -> Result<(Action, Action), Errno> {
    let [signal, new, _, size, ..] = a;
    checked_size(size)?;
    let signal = signal_of(signal)?;
    let before = thread.process.signals().action(signal);
    if new == 0 {
        return Ok((before, before));
    }
    if bit(signal) & UNBLOCKABLE != 0 {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; Action::SIZE];
    thread.process.space().read(new, &mut bytes)?;
    let new = Action::from_bytes(&bytes);
    thread.process.signals().set_action(signal, new);
    Ok((before, new))
}

/// Writes the old action where the program wants it, if it does.
fn report_action(thread: &Thread, to: u64, before: &Action) -> Result<u64, Errno> {
    if to != 0 {
        thread.process.space().write(to, &before.to_bytes())?;
    }
    Ok(0)
}

/// `SA_NOCLDSTOP` and `SA_NOCLDWAIT`.
const CHILD_FLAGS: u64 = 1 | 2;

/// Returns the flags that a SIGCHLD action implies: no notification of stopped children, no
/// zombies.
fn child_flags(action: &Action) -> u64 {
    const KEEPS_NONE: u64 = 2;
    let ignored = match action.handler {
        Action::IGNORE => KEEPS_NONE,
        _ => 0,
    };
    action.flags & CHILD_FLAGS | ignored
}

/// Sets the same flags in the proxy's SIGCHLD action, because children are the proxy's.
async fn mirror_child_flags(thread: &mut Thread, action: &Action) -> Result<u64, Errno> {
    let wanted = child_flags(action);
    let buffer = thread.map_buffer(PAGE).await?;
    let result = set_child_flags(thread, buffer, wanted).await;
    thread.unmap_buffer(buffer, PAGE).await?;
    result
}

async fn set_child_flags(thread: &mut Thread, buffer: u64, wanted: u64) -> Result<u64, Errno> {
    let signal = u64::from(CHLD);
    thread
        .remote_syscall(number::RT_SIGACTION, [signal, 0, buffer, SET_SIZE, 0, 0])
        .await?;
    let mut bytes = [0; Action::SIZE];
    thread.process.space().read(buffer, &mut bytes)?;
    let mut proxy_action = Action::from_bytes(&bytes);
    proxy_action.flags = proxy_action.flags & !CHILD_FLAGS | wanted;
    proxy_action.mask = u64::MAX;
    thread
        .process
        .space()
        .write(buffer, &proxy_action.to_bytes())?;
    thread
        .remote_syscall(number::RT_SIGACTION, [signal, buffer, 0, SET_SIZE, 0, 0])
        .await
}

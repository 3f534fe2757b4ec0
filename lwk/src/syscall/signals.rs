//! Signal calls.

use alloc::boxed::Box;

use super::{Flow, delegate, finish, number};
use crate::process::errno::Errno;
use crate::process::signals::frame::{self, AltStack};
use crate::process::signals::number::CHLD;
use crate::process::signals::{Action, Info, QueueFull, SIGNALS, Set, TTY_STOP, UNBLOCKABLE, bit};
use crate::process::{self, PAGE, Thread, Waiter};

/// Size of a signal set in the program's memory, in bytes.
const SET_SIZE: u64 = 8;
/// Minimum size of an alternate stack (`MINSIGSTKSZ`).
const STACK_MIN: u64 = 2048;

fn signal_of(number: u64) -> Result<u32, Errno> {
    let signal = number as u32;
    match signal {
        1..=SIGNALS => Ok(signal),
        _ => Err(Errno::EINVAL),
    }
}

fn read_set(thread: &mut Thread, address: u64) -> Result<Set, Errno> {
    let mut bytes = [0; 8];
    thread.process.space().read(address, &mut bytes)?;
    Ok(Set::from_le_bytes(bytes))
}

fn checked_size(size: u64) -> Result<(), Errno> {
    match size {
        SET_SIZE => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// rt_sigaction(2).
pub(super) fn action(thread: Box<Thread>, a: [u64; 6]) -> Flow {
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
                process::mirror_action(&mut thread, signal).await;
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

/// Whether a call may access a terminal.
pub(super) fn may_use_terminal(number: u64) -> bool {
    const READ: u64 = 0;
    const WRITE: u64 = 1;
    const IOCTL: u64 = 16;
    const READV: u64 = 19;
    const WRITEV: u64 = 20;
    matches!(number, READ | WRITE | IOCTL | READV | WRITEV)
}

/// Whether the proxy's thread blocks other tty stop signals (SIGTTIN, SIGTTOU) than this thread:
/// the base checks that during a call on a terminal.
pub(super) fn is_mask_outdated(thread: &Thread) -> bool {
    thread.handle.blocked() & TTY_STOP != thread.blocked_in_proxy
}

/// Blocks in the proxy's thread the tty stop signals that this thread blocks.
pub(super) async fn block_in_proxy(thread: &mut Thread) {
    const SET: u64 = 2;
    let blocked = thread.handle.blocked() & TTY_STOP;
    let Some(set) = thread.put_scratch(&[blocked]) else {
        return;
    };
    let arguments = [SET, set, 0, SET_SIZE, 0, 0];
    let done = thread
        .remote_syscall_as_kernel(number::RT_SIGPROCMASK, arguments)
        .await;
    if done.is_ok() {
        thread.blocked_in_proxy = blocked;
    }
}

/// rt_sigprocmask(2).
pub(super) fn mask(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
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
pub(super) fn pending(thread: &mut Thread, to: u64, size: u64) -> Result<u64, Errno> {
    if size > SET_SIZE {
        return Err(Errno::EINVAL);
    }
    let pending = thread.process.signals().pending(thread.id);
    let bytes = pending.to_le_bytes();
    thread.process.space().write(to, &bytes[..size as usize])?;
    Ok(0)
}

/// sigaltstack(2).
pub(super) fn alternate_stack(thread: &mut Thread, new: u64, old: u64) -> Result<u64, Errno> {
    let pointer = thread.context.registers.rsp;
    let before = thread.alt_stack.to_bytes(pointer);
    if new != 0 {
        let mut bytes = [0; AltStack::BYTES];
        thread.process.space().read(new, &mut bytes)?;
        let wanted = AltStack::from_bytes(&bytes);
        if thread.alt_stack.size > 0 && thread.alt_stack.holds(pointer) {
            return Err(Errno::EPERM);
        }
        thread.alt_stack = checked(wanted)?;
    }
    if old != 0 {
        thread.process.space().write(old, &before)?;
    }
    Ok(0)
}

fn checked(wanted: AltStack) -> Result<AltStack, Errno> {
    match wanted.flags & !AltStack::AUTO_DISARM {
        AltStack::DISABLED => Ok(AltStack {
            start: 0,
            size: 0,
            ..wanted
        }),
        0 if wanted.size < STACK_MIN => Err(Errno::ENOMEM),
        0 => Ok(wanted),
        _ => Err(Errno::EINVAL),
    }
}

/// rt_sigreturn(2): restores the context that the signal interrupted.
pub(super) fn sigreturn(mut thread: Box<Thread>) -> Flow {
    if restore(&mut thread).is_err() {
        let fault = Info::fault(super::SEGMENTATION_FAULT as u32, Info::KERNEL, 0);
        thread.process.signals().force(thread.id, fault);
    }
    Flow::Continue(thread)
}

fn restore(thread: &mut Thread) -> Result<(), Errno> {
    // The handler's return popped the restorer's address.
    let address = thread.context.registers.rsp.wrapping_sub(8);
    let mut bytes = [0; frame::SIZE];
    thread.process.space().read(address, &mut bytes)?;
    let restored = frame::read(&bytes);
    let size = thread.extended.bytes().len();
    let mut extended = alloc::vec![0; size];
    match restored.extended {
        0 => thread.extended.reset(),
        at => {
            thread.process.space().read(at, &mut extended)?;
            thread.extended.set_bytes(&extended);
        }
    }
    thread.extended.load();
    thread.context.registers = restored.registers;
    // As on Linux, an invalid one is ignored.
    if let Ok(alt_stack) = checked(restored.alt_stack) {
        thread.alt_stack = alt_stack;
    }
    let blocked = restored.blocked & !UNBLOCKABLE;
    thread.process.signals().block(thread.id, blocked);
    Ok(())
}

fn send(thread: &Thread, to: Option<u64>, info: Info) -> Result<u64, Errno> {
    match thread.process.send_signal(to, info) {
        Ok(()) => Ok(0),
        Err(QueueFull) => Err(Errno::EAGAIN),
    }
}

/// kill(2): local for this program, delegated for others.
pub(super) fn kill(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let pid = thread.process.pages().pid();
    if a[0] as u32 != pid as u32 {
        return delegate(thread, super::number::KILL, a);
    }
    send_own(thread, None, a[1], Info::USER)
}

/// Sends a signal to the program itself, with the sender's user id, which the base knows.
fn send_own(thread: Box<Thread>, to: Option<u64>, signal: u64, code: i32) -> Flow {
    if signal as u32 == 0 {
        return finish(thread, Ok(0));
    }
    let signal = match signal_of(signal) {
        Ok(signal) => signal,
        Err(error) => return finish(thread, Err(error)),
    };
    let pid = thread.process.pages().pid();
    if let Some(uid) = thread.uid {
        let result = send(&thread, to, Info::sent(signal, code, pid, uid));
        return finish(thread, result);
    }
    Flow::handler(thread, move |mut thread| async move {
        let result = thread.remote_syscall(number::GETUID, [0; 6]).await;
        let result = result.and_then(|uid| {
            thread.uid = Some(uid);
            send(&thread, to, Info::sent(signal, code, pid, uid))
        });
        finish(thread, result)
    })
}

/// tgkill(2).
pub(super) fn kill_thread(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [group, id, signal, ..] = a.map(|word| u64::from(word as u32));
    if group != thread.process.pages().pid() {
        return delegate(thread, super::number::TGKILL, a);
    }
    let is_there = thread.process.signals().has(id);
    match is_there {
        true => send_own(thread, Some(id), signal, Info::TKILL),
        false => finish(thread, Err(Errno::ESRCH)),
    }
}

/// tkill(2).
pub(super) fn kill_any_thread(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let id = u64::from(a[0] as u32);
    let is_there = thread.process.signals().has(id);
    match is_there {
        true => send_own(thread, Some(id), a[1], Info::TKILL),
        false => delegate(thread, super::number::TKILL, a),
    }
}

/// rt_sigqueueinfo(2): local for this program, delegated for others.
pub(super) fn queue(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [pid, signal, from, ..] = a;
    if pid as u32 != thread.process.pages().pid() as u32 {
        return delegate(thread, number::RT_SIGQUEUEINFO, a);
    }
    let result = queue_own(&mut thread, None, signal, from);
    finish(thread, result)
}

/// rt_tgsigqueueinfo(2), likewise.
pub(super) fn queue_for_thread(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [pid, to, signal, from, ..] = a;
    if pid as u32 != thread.process.pages().pid() as u32 {
        return delegate(thread, number::RT_TGSIGQUEUEINFO, a);
    }
    let result = queue_own(&mut thread, Some(u64::from(to as u32)), signal, from);
    finish(thread, result)
}

fn queue_own(thread: &mut Thread, to: Option<u64>, signal: u64, from: u64) -> Result<u64, Errno> {
    let mut bytes = [0; Info::SIZE];
    thread.process.space().read(from, &mut bytes)?;
    if to.is_some_and(|id| !thread.process.signals().has(id)) {
        return Err(Errno::ESRCH);
    }
    if signal as u32 == 0 {
        return Ok(0);
    }
    send(thread, to, Info::from_bytes(signal_of(signal)?, &bytes))
}

/// Waits for a signal, until a deadline if any. [`process::deliver_signals`] sets the result.
fn wait(mut thread: Box<Thread>, number: u64, deadline_ns: Option<u64>) -> Flow {
    thread.extended.save();
    thread.interruptible_call = Some(number);
    // Not an address, so no futex has this key.
    let key = (thread.process.pages().number(), !thread.id);
    let waiter = Waiter::new(thread, u32::MAX, deadline_ns);
    let should_wait =
        |thread: &mut Thread| !thread.handle.is_signal_pending() && !thread.must_not_block();
    match process::wait(key, waiter, should_wait) {
        None => Flow::Blocked,
        Some(thread) => finish(thread, Err(Errno::EINTR)),
    }
}

/// pause(2).
pub(super) fn pause(thread: Box<Thread>) -> Flow {
    wait(thread, super::number::PAUSE, None)
}

/// rt_sigsuspend(2).
pub(super) fn suspend(mut thread: Box<Thread>, set: u64, size: u64) -> Flow {
    let set = checked_size(size).and_then(|()| read_set(&mut thread, set));
    match set {
        Ok(set) => {
            block_during_call(&mut thread, set);
            wait(thread, super::number::RT_SIGSUSPEND, None)
        }
        Err(error) => finish(thread, Err(error)),
    }
}

/// Changes the thread's signal mask until its call is over.
pub(super) fn block_during_call(thread: &mut Thread, set: Set) {
    let before = thread.process.signals().block(thread.id, set);
    thread.saved_blocked = Some(before);
}

/// rt_sigtimedwait(2).
pub(super) fn timed_wait(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [set, to, timeout, size, ..] = a;
    let arguments = checked_size(size).and_then(|()| {
        let set = read_set(&mut thread, set)? & !UNBLOCKABLE;
        Ok((set, super::futex::deadline(&mut thread, timeout)?))
    });
    let (set, deadline_ns) = match arguments {
        Ok(arguments) => arguments,
        Err(error) => return finish(thread, Err(error)),
    };
    thread.sigwait = Some((set, to));
    thread.process.signals().await_signals(thread.id, set);
    wait(thread, super::number::RT_SIGTIMEDWAIT, deadline_ns)
}

/// Delegates a call with a signal mask argument. The mask is set here, and the base gets none.
/// Argument `at` is the address of the set, or 0.
pub(super) fn delegate_masked(
    mut thread: Box<Thread>,
    number: u64,
    a: [u64; 6],
    at: usize,
) -> Flow {
    let mut arguments = a;
    let given = core::mem::take(&mut arguments[at]);
    let set = match given {
        0 => Ok(None),
        _ if number == super::number::PSELECT6 => indirect_set(&mut thread, given),
        _ => checked_size(a[at + 1]).and_then(|()| read_set(&mut thread, given).map(Some)),
    };
    match set {
        Ok(set) => {
            if let Some(set) = set {
                block_during_call(&mut thread, set);
            }
            delegate(thread, number, arguments)
        }
        Err(error) => finish(thread, Err(error)),
    }
}

/// pselect6: the argument points to the address of a set and its size.
fn indirect_set(thread: &mut Thread, address: u64) -> Result<Option<Set>, Errno> {
    let set = read_set(thread, address)?;
    let size = read_set(thread, address.wrapping_add(SET_SIZE))?;
    match set {
        0 => Ok(None),
        set => checked_size(size).and_then(|()| read_set(thread, set).map(Some)),
    }
}

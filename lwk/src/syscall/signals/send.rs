//! Calls that send signals.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number::{self, KILL, TGKILL, TKILL};
use crate::model::signals::QueueFull;
use crate::model::signals::info::Info;
use crate::syscall::delegate::{delegate, finish};
use crate::syscall::signals::arguments::signal_of;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

fn send(thread: &Thread, to: Option<u64>, info: Info) -> Result<u64, Errno> {
    match thread.process.send_signal(to, info) {
        Ok(()) => Ok(0),
        Err(QueueFull) => Err(Errno::EAGAIN),
    }
}

/// kill(2): local for this program, delegated for others.
pub(crate) fn kill(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let pid = thread.process.pages().pid();
    if a[0] as u32 != pid as u32 {
        return delegate(thread, KILL, a);
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
pub(crate) fn kill_thread(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [group, id, signal, ..] = a.map(|word| u64::from(word as u32));
    if group != thread.process.pages().pid() {
        return delegate(thread, TGKILL, a);
    }
    let is_there = thread.process.signals().has(id);
    match is_there {
        true => send_own(thread, Some(id), signal, Info::TKILL),
        false => finish(thread, Err(Errno::ESRCH)),
    }
}

/// tkill(2).
pub(crate) fn kill_any_thread(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let id = u64::from(a[0] as u32);
    let is_there = thread.process.signals().has(id);
    match is_there {
        true => send_own(thread, Some(id), a[1], Info::TKILL),
        false => delegate(thread, TKILL, a),
    }
}

/// rt_sigqueueinfo(2): local for this program, delegated for others.
pub(crate) fn queue(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [pid, signal, from, ..] = a;
    if pid as u32 != thread.process.pages().pid() as u32 {
        return delegate(thread, number::RT_SIGQUEUEINFO, a);
    }
    let result = queue_own(&mut thread, None, signal, from);
    finish(thread, result)
}

/// rt_tgsigqueueinfo(2), likewise.
pub(crate) fn queue_for_thread(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
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

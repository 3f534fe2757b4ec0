//! Sending and receiving.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::net::{NONE, operation, ready};

use crate::model::endpoint::{Window, Windows};
use crate::model::errno::Errno;
use crate::model::signals::info::Info;
use crate::syscall::ask::{Words, result};
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::net::open::ask;
use crate::syscall::net::wait::{Woken, wait};
use crate::syscall::net::{address, time};
use crate::syscall::vector::vector;
use crate::task::flow::Flow;
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// `MSG_OOB`, `MSG_PEEK`, `MSG_TRUNC`, `MSG_DONTWAIT`, `MSG_WAITALL`, `MSG_NOSIGNAL`, `MSG_ERRQUEUE`.
const URGENT: u64 = 1;
const PEEK: u64 = 2;
const TRUNCATED: u64 = 0x20;
const DONT_WAIT: u64 = 0x40;
const WAIT_FOR_ALL: u64 = 0x100;
const NO_SIGNAL: u64 = 0x4000;
const ERRORS: u64 = 0x2000;

/// Where the sender's address and more is written once something was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Nothing,
    /// An address, and where its length is.
    Address(u64, u64),
    /// A `struct msghdr`.
    Message(u64),
}

/// A call that sends or receives.
#[derive(Debug)]
struct Transfer {
    number: u64,
    socket: Arc<Socket>,
    receives: bool,
    flags: u64,
    /// Of what is sent, to whom.
    to: u64,
    memory: Windows,
    report: Report,
    /// Bytes that are sent or received already.
    done: u64,
}

impl Transfer {
    fn waits(&self) -> bool {
        !self.socket.is_nonblocking() && self.flags & DONT_WAIT == 0
    }

    /// Whether it goes on until all is done.
    fn is_for_all(&self) -> bool {
        let receives_all = self.flags & WAIT_FOR_ALL != 0 && self.flags & PEEK == 0;
        self.socket.is_of_streams && self.waits() && (!self.receives || receives_all)
    }

    /// Returns what is left of the memory.
    fn rest(&self) -> Windows {
        match self.done {
            0 => self.memory.clone(),
            done => Windows {
                first: Window::default(),
                more: self.memory.parts(done, u64::MAX).collect(),
            },
        }
    }

    /// Begins it.
    fn begin(self, mut thread: Box<Thread>) -> Flow {
        if self.flags & (URGENT | ERRORS) != 0 {
            return finish(thread, Err(Errno::EOPNOTSUPP));
        }
        thread.extended.save();
        self.ask(thread)
    }

    /// Asks for the rest on behalf of a thread whose extended state is saved.
    fn ask(self, thread: Box<Thread>) -> Flow {
        if self.socket.is_gone() {
            return self.end(thread, Err(Errno::ECONNRESET));
        }
        let ask = match self.receives {
            true => ask(&self.socket, operation::RECEIVE, &[self.flags]).writes(self.rest()),
            false => ask(&self.socket, operation::SEND, &[self.to]).reads(self.rest()),
        };
        ask.then(move |thread, words| self.go_on(thread, words))
            .submit_saved(thread)
    }

    fn go_on(mut self, mut thread: Box<Thread>, words: Words) -> Flow {
        match result(&words) {
            Ok(count) => {
                self.done += count;
                let is_more = self.is_for_all() && self.done < self.memory.length();
                if is_more && count > 0 {
                    thread.extended.save();
                    return self.ask(thread);
                }
                let reported = match self.receives {
                    true => self.report(&thread, &words),
                    false => Ok(()),
                };
                let done = self.done;
                finish(thread, reported.map(|()| done))
            }
            Err(Errno::EAGAIN) if self.waits() => self.wait(thread),
            Err(error) => self.end(thread, Err(error)),
        }
    }

    /// Waits until the socket is ready, then goes on.
    fn wait(self, thread: Box<Thread>) -> Flow {
        Flow::handler(thread, move |mut thread| async move {
            let deadline_ns = time::deadline_ns(&mut thread, self.socket.timeout_ns(self.receives));
            let wanted = if self.receives { ready::IN } else { ready::OUT };
            let is_ready = || self.socket.readiness.get() & wanted != 0;
            match wait(&mut thread, deadline_ns, is_ready).await {
                Woken::Ready => self.ask(thread),
                Woken::Expired => self.end(thread, Err(Errno::EAGAIN)),
                Woken::Interrupted => {
                    thread.interruptible_call = Some(self.number);
                    self.end(thread, Err(Errno::EINTR))
                }
            }
        })
    }

    /// Ends it: after a part was done, with that.
    fn end(self, thread: Box<Thread>, result: Result<u64, Errno>) -> Flow {
        const PIPE: u32 = 13;
        if self.done > 0 {
            return finish(thread, Ok(self.done));
        }
        if result == Err(Errno::EPIPE) && self.flags & NO_SIGNAL == 0 && !self.receives {
            let pid = thread.process.pages().pid();
            let info = Info::sent(PIPE, Info::USER, pid, 0);
            // A full queue has it already.
            let _ = thread.process.send_signal(Some(thread.id), info);
        }
        finish(thread, result)
    }

    /// Writes who has sent what was received, and whether it was cut off.
    fn report(&self, thread: &Thread, words: &Words) -> Result<(), Errno> {
        let is_cut_off = !self.socket.is_of_streams && words[3] > self.memory.length();
        let from = words[2];
        match self.report {
            Report::Nothing => Ok(()),
            Report::Address(at, length_at) if at != 0 => {
                let mut space = thread.process.space();
                match from {
                    NONE => space.write(length_at, &[0; 4]),
                    from => {
                        drop(space);
                        address::write(thread, from, at, length_at)
                    }
                }
            }
            Report::Address(..) => Ok(()),
            Report::Message(header) => {
                let flags = if is_cut_off { TRUNCATED } else { 0 };
                report_message(thread, header, from, flags)
            }
        }
    }
}

/// Offsets in `struct msghdr`.
mod header {
    pub(super) const NAME: u64 = 0;
    pub(super) const NAME_LENGTH: u64 = 8;
    pub(super) const VECTOR: u64 = 16;
    pub(super) const VECTOR_COUNT: u64 = 24;
    pub(super) const CONTROL_LENGTH: u64 = 40;
    pub(super) const FLAGS: u64 = 48;
}

fn word(thread: &Thread, at: u64) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    thread.process.space().read(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes what recvmsg(2) reports: the sender, no control messages, and flags.
fn report_message(thread: &Thread, at: u64, from: u64, flags: u64) -> Result<(), Errno> {
    let name = word(thread, at + header::NAME)?;
    let length_at = at + header::NAME_LENGTH;
    match from {
        NONE => thread.process.space().write(length_at, &[0; 4])?,
        from => address::write(thread, from, name, length_at)?,
    }
    let mut space = thread.process.space();
    space.write(at + header::CONTROL_LENGTH, &[0; 8])?;
    space.write(at + header::FLAGS, &(flags as u32).to_le_bytes())
}

fn window(address: u64, length: u64) -> Result<Windows, Errno> {
    match length.cast_signed() {
        0.. => Ok(Windows::from(Window { address, length })),
        _ => Err(Errno::EINVAL),
    }
}

/// Begins a call, unless its arguments are wrong.
fn begin(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    receives: bool,
    parts: Result<(Windows, u64, u64, Report), Errno>,
) -> Flow {
    let (memory, flags, to, report) = match parts {
        Ok(parts) => parts,
        Err(error) => return finish(thread, Err(error)),
    };
    let transfer = Transfer {
        number: thread.context.registers.rax,
        socket,
        receives,
        flags: u64::from(flags as u32),
        to,
        memory,
        report,
        done: 0,
    };
    transfer.begin(thread)
}

/// read(2).
pub(super) fn read(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, length, ..]: Arguments,
) -> Flow {
    let parts = window(at, length).map(|memory| (memory, 0, NONE, Report::Nothing));
    begin(thread, socket, true, parts)
}

/// readv(2).
pub(super) fn read_vector(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, count, ..]: Arguments,
) -> Flow {
    let parts = vector(&thread, at, count).map(|memory| (memory, 0, NONE, Report::Nothing));
    begin(thread, socket, true, parts)
}

/// write(2).
pub(super) fn write(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, length, ..]: Arguments,
) -> Flow {
    let parts = window(at, length).map(|memory| (memory, 0, NONE, Report::Nothing));
    begin(thread, socket, false, parts)
}

/// writev(2).
pub(super) fn write_vector(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, count, ..]: Arguments,
) -> Flow {
    let parts = vector(&thread, at, count).map(|memory| (memory, 0, NONE, Report::Nothing));
    begin(thread, socket, false, parts)
}

/// recvfrom(2).
pub(super) fn receive_from(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, length, flags, from, from_length]: Arguments,
) -> Flow {
    let report = Report::Address(from, from_length);
    let parts = window(at, length).map(|memory| (memory, flags, NONE, report));
    begin(thread, socket, true, parts)
}

/// sendto(2).
pub(super) fn send_to(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, length, flags, to, to_length]: Arguments,
) -> Flow {
    let parts = receiver(&thread, &socket, to, to_length)
        .and_then(|to| Ok((window(at, length)?, flags, to, Report::Nothing)));
    begin(thread, socket, false, parts)
}

/// recvmsg(2).
pub(super) fn receive_message(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, flags, ..]: Arguments,
) -> Flow {
    let memory = message_vector(&thread, at);
    let parts = memory.map(|memory| (memory, flags, NONE, Report::Message(at)));
    begin(thread, socket, true, parts)
}

/// sendmsg(2). Control messages have no effect.
pub(super) fn send_message(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, flags, ..]: Arguments,
) -> Flow {
    let to = word(&thread, at + header::NAME).and_then(|name| {
        let length = word(&thread, at + header::NAME_LENGTH)?;
        receiver(&thread, &socket, name, length)
    });
    let parts = to.and_then(|to| Ok((message_vector(&thread, at)?, flags, to, Report::Nothing)));
    begin(thread, socket, false, parts)
}

fn message_vector(thread: &Thread, at: u64) -> Result<Windows, Errno> {
    let start = word(thread, at.wrapping_add(header::VECTOR))?;
    let count = word(thread, at.wrapping_add(header::VECTOR_COUNT))?;
    vector(thread, start, count)
}

/// Reads to whom something is sent; of streams to nobody else than the peer.
fn receiver(thread: &Thread, socket: &Socket, at: u64, length: u64) -> Result<u64, Errno> {
    match at {
        0 => Ok(NONE),
        _ if socket.is_of_streams => Ok(NONE),
        at => address::read(thread, at, length),
    }
}

//! Where sockets are, and with whom they are connected.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::net::{NONE, operation, ready};

use crate::model::errno::Errno;
use crate::model::number::CONNECT;
use crate::syscall::ask::{Words, result};
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::net::open::ask;
use crate::syscall::net::wait::{Woken, wait};
use crate::syscall::net::{address, time};
use crate::task::flow::Flow;
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// bind(2).
pub(super) fn bind(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, length, ..]: Arguments,
) -> Flow {
    match address::read(&thread, at, length) {
        Ok(NONE) => finish(thread, Err(Errno::EAFNOSUPPORT)),
        Ok(address) => ask(&socket, operation::BIND, &[address]).submit(thread),
        Err(error) => finish(thread, Err(error)),
    }
}

/// listen(2).
pub(super) fn listen(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, backlog, ..]: Arguments,
) -> Flow {
    ask(&socket, operation::LISTEN, &[backlog]).submit(thread)
}

/// shutdown(2).
pub(super) fn shut_down(thread: Box<Thread>, socket: Arc<Socket>, [_, how, ..]: Arguments) -> Flow {
    ask(&socket, operation::SHUTDOWN, &[how]).submit(thread)
}

/// connect(2).
pub(super) fn connect(
    mut thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, at, length, ..]: Arguments,
) -> Flow {
    match address::read(&thread, at, length) {
        Ok(to) => {
            thread.extended.save();
            ask_to_connect(thread, socket, to)
        }
        Err(error) => finish(thread, Err(error)),
    }
}

/// Asks for a connection, or whether it has been made, on behalf of a thread whose extended state is saved.
fn ask_to_connect(thread: Box<Thread>, socket: Arc<Socket>, to: u64) -> Flow {
    ask(&socket, operation::CONNECT, &[to])
        .then(move |thread, words| match result(&words) {
            Err(Errno::EINPROGRESS | Errno::EALREADY) if !socket.is_nonblocking() => {
                wait_to_connect(thread, socket, to)
            }
            result => finish(thread, result),
        })
        .submit_saved(thread)
}

fn wait_to_connect(thread: Box<Thread>, socket: Arc<Socket>, to: u64) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let deadline_ns = time::deadline_ns(&mut thread, socket.timeout_ns(false));
        let is_ready = || socket.readiness.get() & ready::OUT != 0;
        match wait(&mut thread, deadline_ns, is_ready).await {
            Woken::Ready => ask_to_connect(thread, socket, to),
            Woken::Expired => finish(thread, Err(Errno::EINPROGRESS)),
            Woken::Interrupted => {
                thread.interruptible_call = Some(CONNECT);
                finish(thread, Err(Errno::EINTR))
            }
        }
    })
}

/// getsockname(2).
pub(super) fn own(thread: Box<Thread>, socket: Arc<Socket>, arguments: Arguments) -> Flow {
    name(thread, &socket, arguments, |words| Ok(words[2]))
}

/// getpeername(2).
pub(super) fn peer(thread: Box<Thread>, socket: Arc<Socket>, arguments: Arguments) -> Flow {
    name(thread, &socket, arguments, |words| match words[3] {
        NONE => Err(Errno::ENOTCONN),
        peer => Ok(peer),
    })
}

fn name(
    thread: Box<Thread>,
    socket: &Socket,
    [_, at, length_at, ..]: Arguments,
    choose: fn(&Words) -> Result<u64, Errno>,
) -> Flow {
    ask(socket, operation::NAMES, &[])
        .then(move |thread, words| {
            let name = result(&words).and_then(|_| choose(&words));
            let written = name.and_then(|name| match at {
                0 => Err(Errno::EFAULT),
                at => address::write(&thread, name, at, length_at),
            });
            finish(thread, written.map(|()| 0))
        })
        .submit(thread)
}

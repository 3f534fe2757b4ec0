//! New sockets: socket(2), accept(2), and epoll instances.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::net::operation;

use crate::model::errno::Errno;
use crate::model::number::{CLOSE, EPOLL_CREATE1, SOCKET};
use crate::model::socket_address::INET;
use crate::syscall::ask::{Ask, Words, result};
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::net::wait::{Woken, wait};
use crate::syscall::net::{address, time};
use crate::task::endpoint::Handle;
use crate::task::epoll::Epoll;
use crate::task::flow::Flow;
use crate::task::mounted::{self, OpenFile, Opened};
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// `AF_INET6`.
const INET6: u64 = 10;
/// `SOCK_STREAM`, `SOCK_DGRAM`, and the bits of a type beside flags.
const STREAM: u64 = 1;
const DATAGRAM: u64 = 2;
const TYPE: u64 = 0xf;
/// `SOCK_NONBLOCK`, `SOCK_CLOEXEC`.
const NONBLOCKING: u64 = 0o4000;
const CLOSE_ON_EXEC: u64 = 0o2_000_000;

/// What a request about a socket is: an operation and its words behind the handle.
pub(super) fn ask(socket: &Socket, operation: u32, more: &[u64]) -> Ask {
    let mut words = Words::default();
    words[0] = socket.handle;
    words[1..=more.len()].copy_from_slice(more);
    Ask::new(&socket.endpoint, operation, words).of_socket(socket.handle)
}

/// Whether a socket of this kind is a network server's.
pub(super) fn is_served([family, kind, ..]: Arguments) -> bool {
    let family = u64::from(family as u32);
    family == INET6 || family == INET.into() && matches!(kind & TYPE, STREAM | DATAGRAM)
}

/// socket(2). The base checks the arguments, and opens a socket that stands for the descriptor's number.
pub(super) fn socket(thread: Box<Thread>, network: Handle, arguments: Arguments) -> Flow {
    let [family, kind, ..] = arguments;
    if u64::from(family as u32) == INET6 {
        return finish(thread, Err(Errno::EAFNOSUPPORT));
    }
    Flow::handler(thread, move |mut thread| async move {
        let fd = match thread.remote_syscall(SOCKET, arguments).await {
            Ok(fd) => fd,
            Err(error) => return finish(thread, Err(error)),
        };
        let (is_of_streams, is_nonblocking) = (kind & TYPE == STREAM, kind & NONBLOCKING != 0);
        let socket = Socket::new(&network, is_of_streams, is_nonblocking);
        ask(&socket, operation::SOCKET, &[kind & TYPE])
            .then(move |thread, words| {
                let file = OpenFile {
                    opened: Opened::Socket(socket),
                    closes_on_exec: kind & CLOSE_ON_EXEC != 0,
                };
                created(thread, result(&words), fd, file)
            })
            .submit_saved(thread)
    })
}

/// Gives a descriptor a socket that the server has created, or closes it.
fn created(thread: Box<Thread>, result: Result<u64, Errno>, fd: u64, file: OpenFile) -> Flow {
    match result {
        Ok(_) => {
            insert(&thread, fd, file);
            finish(thread, Ok(fd))
        }
        Err(error) => Flow::handler(thread, move |mut thread| async move {
            // It is nobody else's.
            let _ = thread.remote_syscall(CLOSE, [fd, 0, 0, 0, 0, 0]).await;
            finish(thread, Err(error))
        }),
    }
}

fn insert(thread: &Thread, fd: u64, file: OpenFile) {
    let files = mounted::files(&thread.process);
    let before = files.and_then(|files| files.lock().insert(fd, file));
    mounted::release(&thread.process, before);
}

/// What accept(2) and accept4(2) have.
#[derive(Clone, Copy)]
struct Acceptance {
    number: u64,
    address: u64,
    length: u64,
    flags: u64,
}

/// accept(2).
pub(super) fn accept(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, address, length, ..]: Arguments,
) -> Flow {
    begin_accept(thread, socket, address, length, 0)
}

/// accept4(2).
pub(super) fn accept_with(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, address, length, flags, ..]: Arguments,
) -> Flow {
    match flags & !(NONBLOCKING | CLOSE_ON_EXEC) {
        0 => begin_accept(thread, socket, address, length, flags),
        _ => finish(thread, Err(Errno::EINVAL)),
    }
}

fn begin_accept(
    mut thread: Box<Thread>,
    socket: Arc<Socket>,
    address: u64,
    length: u64,
    flags: u64,
) -> Flow {
    let acceptance = Acceptance {
        number: thread.context.registers.rax,
        address,
        length,
        flags,
    };
    thread.extended.save();
    ask_to_accept(thread, socket, acceptance)
}

/// Asks for a connection on behalf of a thread whose extended state is saved.
fn ask_to_accept(thread: Box<Thread>, socket: Arc<Socket>, acceptance: Acceptance) -> Flow {
    if socket.is_gone() {
        return finish(thread, Err(Errno::ENETDOWN));
    }
    // The server has announced each connection.
    if socket.readiness.get() == 0 {
        return match socket.is_nonblocking() {
            true => finish(thread, Err(Errno::EAGAIN)),
            false => wait_to_accept(thread, socket, acceptance),
        };
    }
    let is_nonblocking = acceptance.flags & NONBLOCKING != 0;
    let accepted = Socket::new(&socket.endpoint, true, is_nonblocking);
    ask(&socket, operation::ACCEPT, &[accepted.handle])
        .then(move |thread, words| match result(&words) {
            Ok(_) => give_descriptor(thread, accepted, words[2], acceptance),
            Err(Errno::EAGAIN) if !socket.is_nonblocking() => {
                wait_to_accept(thread, socket, acceptance)
            }
            Err(error) => finish(thread, Err(error)),
        })
        .submit_saved(thread)
}

fn wait_to_accept(thread: Box<Thread>, socket: Arc<Socket>, acceptance: Acceptance) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let deadline_ns = time::deadline_ns(&mut thread, socket.timeout_ns(true));
        match wait(&mut thread, deadline_ns, || socket.readiness.get() != 0).await {
            Woken::Ready => ask_to_accept(thread, socket, acceptance),
            Woken::Expired => finish(thread, Err(Errno::EAGAIN)),
            Woken::Interrupted => {
                thread.interruptible_call = Some(acceptance.number);
                finish(thread, Err(Errno::EINTR))
            }
        }
    })
}

/// Has the base open a socket that stands for the descriptor's number of a connection.
fn give_descriptor(
    thread: Box<Thread>,
    accepted: Arc<Socket>,
    peer: u64,
    acceptance: Acceptance,
) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let kind = STREAM | acceptance.flags & CLOSE_ON_EXEC;
        let arguments = [INET.into(), kind, 0, 0, 0, 0];
        let fd = match thread.remote_syscall(SOCKET, arguments).await {
            Ok(fd) => fd,
            Err(error) => return finish(thread, Err(error)),
        };
        let file = OpenFile {
            opened: Opened::Socket(accepted),
            closes_on_exec: acceptance.flags & CLOSE_ON_EXEC != 0,
        };
        // If that fails the connection is lost, as Linux' is.
        let written = address::write(&thread, peer, acceptance.address, acceptance.length);
        created(thread, written.map(|()| fd), fd, file)
    })
}

/// epoll_create(2): as epoll_create1(2) without flags.
pub(super) fn create_epoll(thread: Box<Thread>, number: u64, arguments: Arguments) -> Flow {
    let flags = if number == EPOLL_CREATE1 {
        arguments[0]
    } else {
        0
    };
    Flow::handler(thread, move |mut thread| async move {
        let created = thread.remote_syscall(number, arguments).await;
        if let Ok(fd) = created {
            let file = OpenFile {
                opened: Opened::Epoll(Arc::new(Epoll::default())),
                closes_on_exec: flags & CLOSE_ON_EXEC != 0,
            };
            insert(&thread, fd, file);
        }
        finish(thread, created)
    })
}

//! fcntl(2) and ioctl(2).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use insula_abi::net::operation;

use crate::model::errno::Errno;
use crate::model::number::FCNTL;
use crate::syscall::ask::result;
use crate::syscall::delegate::{delegate, finish};
use crate::syscall::mounted::descriptors::control_any;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::net::open::ask;
use crate::task::epoll::Epoll;
use crate::task::flow::Flow;
use crate::task::mounted::Opened;
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// `O_RDWR`, `O_NONBLOCK`.
const READ_WRITE: u64 = 2;
const NONBLOCKING: u64 = 0o4000;

/// fcntl(2) of a socket.
pub(super) fn control(thread: Box<Thread>, socket: Arc<Socket>, arguments: Arguments) -> Flow {
    /// `F_GETFL`, `F_SETFL`.
    const GET_FLAGS: u32 = 3;
    const SET_FLAGS: u32 = 4;
    let [_, command, argument, ..] = arguments;
    let opened = Opened::Socket(Arc::clone(&socket));
    let thread = match control_any(thread, opened, arguments) {
        Ok(flow) => return flow,
        Err(thread) => thread,
    };
    match command as u32 {
        GET_FLAGS => {
            let nonblocking = if socket.is_nonblocking() {
                NONBLOCKING
            } else {
                0
            };
            finish(thread, Ok(READ_WRITE | nonblocking))
        }
        SET_FLAGS => {
            let is_nonblocking = argument & NONBLOCKING != 0;
            socket
                .is_nonblocking
                .store(is_nonblocking, Ordering::Relaxed);
            finish(thread, Ok(0))
        }
        _ => finish(thread, Err(Errno::EINVAL)),
    }
}

/// fcntl(2) of an epoll instance.
pub(super) fn control_epoll(thread: Box<Thread>, epoll: Arc<Epoll>, arguments: Arguments) -> Flow {
    match control_any(thread, Opened::Epoll(epoll), arguments) {
        Ok(flow) => flow,
        Err(thread) => delegate(thread, FCNTL, arguments),
    }
}

/// ioctl(2) of a socket.
pub(super) fn device(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, command, at, ..]: Arguments,
) -> Flow {
    /// `FIONREAD`, `FIONBIO`.
    const QUEUED: u32 = 0x541b;
    const SET_NONBLOCKING: u32 = 0x5421;
    match command as u32 {
        QUEUED => ask(&socket, operation::QUEUED, &[])
            .then(move |thread, words| {
                let written = result(&words).and_then(|queued| {
                    let bytes = (queued as u32).to_le_bytes();
                    thread.process.space().write(at, &bytes)
                });
                finish(thread, written.map(|()| 0))
            })
            .submit(thread),
        SET_NONBLOCKING => {
            let mut value = [0; 4];
            let read = thread.process.space().read(at, &mut value);
            if read.is_ok() {
                let is_nonblocking = value != [0; 4];
                socket
                    .is_nonblocking
                    .store(is_nonblocking, Ordering::Relaxed);
            }
            finish(thread, read.map(|()| 0))
        }
        _ => finish(thread, Err(Errno::ENOTTY)),
    }
}

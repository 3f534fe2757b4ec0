//! Which calls concern a network server.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::model::errno::Errno;
use crate::model::number as call;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::{Arguments, Routed};
use crate::syscall::net::{control, epoll, names, open, options, poll, select, sendfile, transfer};
use crate::task::epoll::Epoll;
use crate::task::flow::Flow;
use crate::task::mounted::{self, MountedFiles};
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// Deals with a call on a socket.
type OnSocket = fn(Box<Thread>, Arc<Socket>, Arguments) -> Flow;
/// Deals with a call on an epoll instance.
type OnEpoll = fn(Box<Thread>, Arc<Epoll>, Arguments) -> Flow;
/// Deals with a call on a list of descriptors.
type OnList = fn(Box<Thread>, &spin::Mutex<MountedFiles>, Arguments) -> Routed;

/// Deals with a call of a process that has servers.
pub(in crate::syscall) fn route(thread: Box<Thread>, number: u64, arguments: Arguments) -> Routed {
    let Some(files) = mounted::files(&thread.process) else {
        return Routed::Base(thread);
    };
    let network = files.lock().network.clone();
    let Some(network) = network else {
        return Routed::Base(thread);
    };
    match number {
        call::SOCKET if open::is_served(arguments) => {
            return Routed::Server(open::socket(thread, network, arguments));
        }
        call::EPOLL_CREATE | call::EPOLL_CREATE1 => {
            return Routed::Server(open::create_epoll(thread, number, arguments));
        }
        _ => {}
    }
    if let Some(act) = on_list(number) {
        return act(thread, &files, arguments);
    }
    if let Some(act) = on_socket(number) {
        let socket = files.lock().socket(arguments[0]);
        if let Some(socket) = socket {
            return Routed::Server(act(thread, socket, arguments));
        }
    }
    if let Some(act) = on_epoll(number) {
        let epoll = files.lock().epoll(arguments[0]);
        if let Some(epoll) = epoll {
            return Routed::Server(act(thread, epoll, arguments));
        }
    }
    Routed::Base(thread)
}

fn on_list(number: u64) -> Option<OnList> {
    Some(match number {
        call::POLL => poll::poll,
        call::PPOLL => poll::poll_masked,
        call::SELECT => select::select,
        call::PSELECT6 => select::select_masked,
        _ => return None,
    })
}

/// Those with a socket as their first argument. Of others the base finds a socket that has no connection.
fn on_socket(number: u64) -> Option<OnSocket> {
    Some(match number {
        call::READ => transfer::read,
        call::READV => transfer::read_vector,
        call::WRITE => transfer::write,
        call::WRITEV => transfer::write_vector,
        call::RECVFROM => transfer::receive_from,
        call::SENDTO => transfer::send_to,
        call::RECVMSG => transfer::receive_message,
        call::SENDMSG => transfer::send_message,
        call::BIND => names::bind,
        call::LISTEN => names::listen,
        call::ACCEPT => open::accept,
        call::ACCEPT4 => open::accept_with,
        call::CONNECT => names::connect,
        call::SHUTDOWN => names::shut_down,
        call::GETSOCKNAME => names::own,
        call::GETPEERNAME => names::peer,
        call::SETSOCKOPT => options::set,
        call::GETSOCKOPT => options::get,
        call::FCNTL => control::control,
        call::IOCTL => control::device,
        call::SENDFILE => sendfile::send_file,
        call::SPLICE => invalid,
        call::SENDMMSG | call::RECVMMSG => missing,
        _ => return None,
    })
}

fn on_epoll(number: u64) -> Option<OnEpoll> {
    Some(match number {
        call::EPOLL_CTL => epoll::control,
        call::EPOLL_WAIT => epoll::wait_ms,
        call::EPOLL_PWAIT => epoll::wait_masked,
        call::EPOLL_PWAIT2 => epoll::wait_precisely,
        call::FCNTL => control::control_epoll,
        _ => return None,
    })
}

/// What the base's kernel would have to do with the socket: programs read and write then.
fn invalid(thread: Box<Thread>, _: Arc<Socket>, _: Arguments) -> Flow {
    finish(thread, Err(Errno::EINVAL))
}

/// As on an older Linux: programs send and receive one by one then.
fn missing(thread: Box<Thread>, _: Arc<Socket>, _: Arguments) -> Flow {
    finish(thread, Err(Errno::ENOSYS))
}

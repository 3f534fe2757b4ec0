//! Options of sockets. Timeouts of calls are this kernel's, all others the server's.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::net::operation;

use crate::model::endpoint::Window;
use crate::model::errno::Errno;
use crate::syscall::ask::result;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::net::open::ask;
use crate::syscall::net::time::{Unit, of_bytes, to_bytes};
use crate::task::flow::Flow;
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// Largest value of an option.
const SIZE_MAX: u64 = 256;

/// Whether an option is how long calls wait that receive (`SO_RCVTIMEO`), or others (`SO_SNDTIMEO`).
fn timeout(level: u64, name: u64) -> Option<bool> {
    /// `SOL_SOCKET`.
    const SOCKET: u32 = 1;
    match (level as u32, name as u32) {
        (SOCKET, 20 | 66) => Some(true),
        (SOCKET, 21 | 67) => Some(false),
        _ => None,
    }
}

/// setsockopt(2).
pub(super) fn set(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, level, name, at, size, _]: Arguments,
) -> Flow {
    let size = u64::from(size as u32);
    if let Some(receives) = timeout(level, name) {
        let result = set_timeout(&thread, &socket, receives, (at, size));
        return finish(thread, result);
    }
    let value = Window {
        address: at,
        length: size.min(SIZE_MAX),
    };
    ask(&socket, operation::SET_OPTION, &[level, name])
        .reads(value)
        .submit(thread)
}

fn set_timeout(
    thread: &Thread,
    socket: &Socket,
    receives: bool,
    (at, size): (u64, u64),
) -> Result<u64, Errno> {
    let mut bytes = [0; 16];
    if size < bytes.len() as u64 {
        return Err(Errno::EINVAL);
    }
    thread.process.space().read(at, &mut bytes)?;
    socket.set_timeout_ns(receives, of_bytes(bytes, Unit::Microseconds)?);
    Ok(0)
}

/// getsockopt(2).
pub(super) fn get(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, level, name, at, size_at, _]: Arguments,
) -> Flow {
    let mut size = [0; 4];
    let read = thread.process.space().read(size_at, &mut size);
    let size = match (read, u64::try_from(i32::from_le_bytes(size))) {
        (Ok(()), Ok(size)) => size,
        (Ok(()), Err(_)) => return finish(thread, Err(Errno::EINVAL)),
        (Err(error), _) => return finish(thread, Err(error)),
    };
    if let Some(receives) = timeout(level, name) {
        let timeout_ns = socket.timeout_ns(receives).unwrap_or(0);
        let bytes = to_bytes(timeout_ns, Unit::Microseconds);
        let part = &bytes[..bytes.len().min(size as usize)];
        let mut space = thread.process.space();
        let written = space
            .write(at, part)
            .and_then(|()| space.write(size_at, &(part.len() as u32).to_le_bytes()));
        drop(space);
        return finish(thread, written.map(|()| 0));
    }
    ask(&socket, operation::GET_OPTION, &[level, name])
        .writes_at(at, size.min(SIZE_MAX))
        .then(move |thread, words| {
            let size = result(&words);
            let written = size.and_then(|size| {
                let bytes = (size as u32).to_le_bytes();
                thread.process.space().write(size_at, &bytes)
            });
            finish(thread, written.map(|()| 0))
        })
        .submit(thread)
}

//! sendfile(2) of a file of the base to a socket: read by the base into a buffer of the program's memory,
//! part by part, and sent from there.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::net::{NONE, operation, ready};

use crate::model::endpoint::Window;
use crate::model::errno::Errno;
use crate::model::number::{LSEEK, PREAD64};
use crate::syscall::ask::result;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::net::open::ask;
use crate::syscall::net::time;
use crate::syscall::net::wait::{Woken, wait};
use crate::task::flow::Flow;
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// Bytes that are read at once.
const BUFFER: u64 = 64 << 10;
/// `SEEK_SET`, `SEEK_CUR`.
const SET: u64 = 0;
const CURRENT: u64 = 1;

/// A call under way.
struct Copy {
    number: u64,
    socket: Arc<Socket>,
    file: u64,
    /// Where the program has the offset; 0 for the file's own.
    offset_at: u64,
    start: u64,
    count: u64,
    buffer: u64,
    done: u64,
}

/// sendfile(2).
pub(super) fn send_file(
    thread: Box<Thread>,
    socket: Arc<Socket>,
    [_, file, offset_at, count, ..]: Arguments,
) -> Flow {
    let number = thread.context.registers.rax;
    Flow::handler(thread, move |mut thread| async move {
        let start = match offset_at {
            0 => {
                thread
                    .remote_syscall(LSEEK, [file, 0, CURRENT, 0, 0, 0])
                    .await
            }
            at => read_offset(&thread, at),
        };
        let prepared = match start {
            Ok(start) => thread
                .map_buffer(BUFFER)
                .await
                .map(|buffer| (start, buffer)),
            Err(error) => Err(error),
        };
        let (start, buffer) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return finish(thread, Err(error)),
        };
        let copy = Copy {
            number,
            socket,
            file,
            offset_at,
            start,
            count,
            buffer,
            done: 0,
        };
        copy.read(thread).await
    })
}

fn read_offset(thread: &Thread, at: u64) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    thread.process.space().read(at, &mut bytes)?;
    match i64::from_le_bytes(bytes) {
        offset @ 0.. => Ok(offset as u64),
        _ => Err(Errno::EINVAL),
    }
}

impl Copy {
    /// Has the base read the next part, and sends it.
    async fn read(self, mut thread: Box<Thread>) -> Flow {
        let length = (self.count - self.done).min(BUFFER);
        let place = [self.file, self.buffer, length, self.start + self.done, 0, 0];
        match thread.remote_syscall(PREAD64, place).await {
            Ok(0) => self.end(thread, Ok(())).await,
            Ok(length) => self.send(thread, length),
            Err(error) => self.end(thread, Err(error)).await,
        }
    }

    /// Sends a part, on behalf of a thread whose extended state is saved.
    fn send(mut self, thread: Box<Thread>, length: u64) -> Flow {
        let part = Window {
            address: self.buffer,
            length,
        };
        ask(&self.socket, operation::SEND, &[NONE])
            .reads(part)
            .then(move |thread, words| {
                let sent = result(&words);
                self.done += sent.unwrap_or(0);
                Flow::handler(thread, move |thread| self.go_on(thread, (sent, length)))
            })
            .submit_saved(thread)
    }

    async fn go_on(
        self,
        mut thread: Box<Thread>,
        (sent, length): (Result<u64, Errno>, u64),
    ) -> Flow {
        let waits = !self.socket.is_nonblocking();
        match sent {
            Ok(_) if self.done == self.count => self.end(thread, Ok(())).await,
            Ok(sent) if sent == length => self.read(thread).await,
            Ok(_) | Err(Errno::EAGAIN) if waits => {
                let timeout_ns = self.socket.timeout_ns(false);
                let deadline_ns = time::deadline_ns(&mut thread, timeout_ns);
                let is_ready = || self.socket.readiness.get() & ready::OUT != 0;
                match wait(&mut thread, deadline_ns, is_ready).await {
                    Woken::Ready => self.read(thread).await,
                    Woken::Expired => self.end(thread, Err(Errno::EAGAIN)).await,
                    Woken::Interrupted => {
                        thread.interruptible_call = Some(self.number);
                        self.end(thread, Err(Errno::EINTR)).await
                    }
                }
            }
            Ok(_) => self.end(thread, Ok(())).await,
            Err(error) => self.end(thread, Err(error)).await,
        }
    }

    /// Ends it: after a part was sent, with that.
    async fn end(self, mut thread: Box<Thread>, result: Result<(), Errno>) -> Flow {
        // Without memory for that it stays, as memory of the program.
        let _ = thread.unmap_buffer(self.buffer, BUFFER).await;
        let end = self.start + self.done;
        let moved = match self.offset_at {
            0 => thread
                .remote_syscall(LSEEK, [self.file, end, SET, 0, 0, 0])
                .await
                .map(drop),
            at => thread.process.space().write(at, &end.to_le_bytes()),
        };
        let result = match self.done {
            0 => result.map(|()| 0),
            done => Ok(done),
        };
        finish(thread, moved.and(result))
    }
}

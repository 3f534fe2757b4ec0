//! poll(2) and ppoll(2), of sockets of the server and descriptors of the base.
//!
//! For the base's part, descriptors of sockets are made negative in the program's own list, which the
//! base passes over, and put back then.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::hw::memory::room::reserve_in;
use crate::model::errno::Errno;
use crate::model::number::POLL;
use crate::model::readiness::{ALWAYS, with_aliases};
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::{Arguments, Routed};
use crate::syscall::net::epoll::block;
use crate::syscall::net::time::{Unit, deadline_ns, of_ms, read, to_bytes};
use crate::syscall::net::wait::{BaseCall, Woken, wait};
use crate::task::flow::Flow;
use crate::task::mounted::MountedFiles;
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// Size of `struct pollfd`, and where it has its results.
const ENTRY_SIZE: u64 = 8;
const RESULT: u64 = 6;
/// Most descriptors of one call.
const COUNT_MAX: u64 = 1 << 16;

/// poll(2).
pub(super) fn poll(thread: Box<Thread>, files: &spin::Mutex<MountedFiles>, a: Arguments) -> Routed {
    let timeout_ns = of_ms(a[2]);
    match List::read(&thread, files, (a[0], a[1])) {
        Ok(Some(list)) => Routed::Server(begin(thread, list, (timeout_ns, 0))),
        Ok(None) => Routed::Base(thread),
        Err(error) => Routed::Server(finish(thread, Err(error))),
    }
}

/// ppoll(2).
pub(super) fn poll_masked(
    mut thread: Box<Thread>,
    files: &spin::Mutex<MountedFiles>,
    [at, count, timeout, mask, size, _]: Arguments,
) -> Routed {
    let list = match List::read(&thread, files, (at, count)) {
        Ok(Some(list)) => list,
        Ok(None) => return Routed::Base(thread),
        Err(error) => return Routed::Server(finish(thread, Err(error))),
    };
    let timeout_ns = read(&thread, timeout, Unit::Nanoseconds);
    let timeout_ns = timeout_ns.and_then(|ns| block(&mut thread, mask, size).map(|()| ns));
    Routed::Server(match timeout_ns {
        Ok(timeout_ns) => begin(thread, list, (timeout_ns, timeout)),
        Err(error) => finish(thread, Err(error)),
    })
}

/// Begins a call with a timeout, of which the rest is written to an address, if there is one.
fn begin(mut thread: Box<Thread>, list: List, (timeout_ns, rest_at): (Option<u64>, u64)) -> Flow {
    let number = thread.context.registers.rax;
    let deadline_ns = deadline_ns(&mut thread, timeout_ns);
    let is_look = timeout_ns == Some(0);
    Flow::handler(thread, move |mut thread| async move {
        let result = list.run(&mut thread, deadline_ns, is_look).await;
        if let Some(deadline_ns) = deadline_ns.filter(|_| rest_at != 0) {
            let left_ns = deadline_ns.saturating_sub(crate::hw::clock::now_ns());
            let bytes = to_bytes(left_ns, Unit::Nanoseconds);
            // As on Linux, a timeout that cannot be written stays as it is.
            let _ = thread.process.space().write(rest_at, &bytes);
        }
        if result == Err(Errno::EINTR) {
            thread.interruptible_call = Some(number);
        }
        finish(thread, result)
    })
}

/// A socket in a list.
struct Entry {
    at: u64,
    fd: i32,
    wanted: u32,
    socket: Arc<Socket>,
}

impl Entry {
    fn ready(&self) -> u32 {
        with_aliases(self.socket.readiness.get()) & (self.wanted | ALWAYS)
    }
}

/// A list of descriptors, of which some are sockets.
struct List {
    at: u64,
    count: u64,
    sockets: Vec<Entry>,
}

impl List {
    /// Reads a list. `None` if it has no socket of a server.
    fn read(
        thread: &Thread,
        files: &spin::Mutex<MountedFiles>,
        (at, count): (u64, u64),
    ) -> Result<Option<Self>, Errno> {
        let count = u64::from(count as u32);
        if count > COUNT_MAX {
            return Ok(None);
        }
        let mut sockets = Vec::new();
        for index in 0..count {
            let at = at.wrapping_add(index * ENTRY_SIZE);
            let mut bytes = [0; ENTRY_SIZE as usize];
            thread.process.space().read(at, &mut bytes)?;
            let fd = i32::from_le_bytes(core::array::from_fn(|byte| bytes[byte]));
            let Ok(number) = u64::try_from(fd) else {
                continue;
            };
            if let Some(socket) = files.lock().socket(number) {
                reserve_in(&mut sockets, 1)?;
                sockets.push(Entry {
                    at,
                    fd,
                    wanted: u16::from_le_bytes([bytes[4], bytes[5]]).into(),
                    socket,
                });
            }
        }
        let list = Self { at, count, sockets };
        Ok((!list.sockets.is_empty()).then_some(list))
    }

    fn is_ready(&self) -> bool {
        self.sockets.iter().any(|entry| entry.ready() != 0)
    }

    /// Has the base pass over the sockets, or no longer.
    fn hide(&self, thread: &Thread, hides: bool) -> Result<(), Errno> {
        let mut space = thread.process.space();
        self.sockets.iter().try_for_each(|entry| {
            let fd = if hides { !entry.fd } else { entry.fd };
            space.write(entry.at, &fd.to_le_bytes())
        })
    }

    /// Writes what sockets are ready for. Returns for how many that is something.
    fn report(&self, thread: &Thread) -> Result<u64, Errno> {
        let mut space = thread.process.space();
        let mut count = 0;
        for entry in &self.sockets {
            let ready = entry.ready();
            space.write(entry.at + RESULT, &(ready as u16).to_le_bytes())?;
            count += u64::from(ready != 0);
        }
        Ok(count)
    }

    /// Writes that no descriptor of the base is ready.
    fn clear(&self, thread: &Thread) -> Result<(), Errno> {
        let mut space = thread.process.space();
        (0..self.count).try_for_each(|index| {
            let at = self.at + index * ENTRY_SIZE + RESULT;
            space.write(at, &[0; 2])
        })
    }

    fn base_call(&self) -> BaseCall {
        BaseCall {
            number: POLL,
            arguments: [self.at, self.count, 0, 0, 0, 0],
            timeout: 2,
            times: [0, u64::from(u32::MAX)],
        }
    }

    async fn run(
        &self,
        thread: &mut Thread,
        deadline_ns: Option<u64>,
        is_look: bool,
    ) -> Result<u64, Errno> {
        let has_others = self.count > self.sockets.len() as u64;
        loop {
            let is_ready = self.is_ready();
            let looks = has_others && (!is_ready && is_look || BaseCall::is_due(thread));
            let found = match looks {
                true => {
                    self.hide(thread, true)?;
                    let found = self.base_call().look(thread).await;
                    self.hide(thread, false)?;
                    found?
                }
                false => {
                    self.clear(thread)?;
                    0
                }
            };
            let ready = self.report(thread)?;
            if found + ready > 0 || is_look {
                return Ok(found + ready);
            }
            match self.wait(thread, deadline_ns, has_others).await? {
                Ok(Woken::Ready) => {}
                Ok(Woken::Interrupted) => return Err(Errno::EINTR),
                Ok(Woken::Expired) => {
                    self.clear(thread)?;
                    return Ok(0);
                }
                Err(found) => return Ok(found + self.report(thread)?),
            }
        }
    }

    /// Waits. Returns what has ended that, or the number of the base's descriptors that are ready.
    async fn wait(
        &self,
        thread: &mut Thread,
        deadline_ns: Option<u64>,
        has_others: bool,
    ) -> Result<Result<Woken, u64>, Errno> {
        let is_ready = || self.is_ready();
        if !has_others {
            return Ok(Ok(wait(thread, deadline_ns, is_ready).await));
        }
        self.hide(thread, true)?;
        let woken = self.base_call().wait(thread, deadline_ns, is_ready).await;
        self.hide(thread, false)?;
        match woken {
            Ok(woken) => Ok(Ok(woken)),
            Err(result) => result.map(Err),
        }
    }
}

//! epoll(7): the base's instance watches the base's descriptors, this kernel sockets of the server.
//!
//! Not seen are a server's sockets in an instance that another one watches.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::hw::memory::room::has_room;
use crate::model::errno::Errno;
use crate::model::number::{EPOLL_CTL, EPOLL_WAIT};
use crate::model::readiness::Interest;
use crate::syscall::delegate::{delegate, finish};
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::net::time::{Unit, deadline_ns, of_ms, read};
use crate::syscall::net::wait::{BaseCall, Woken, wait};
use crate::syscall::signals::arguments::{checked_size, read_set};
use crate::syscall::signals::mask::block_during_call;
use crate::task::epoll::Epoll;
use crate::task::flow::Flow;
use crate::task::mounted;
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// Size of `struct epoll_event`, which is packed.
const EVENT_SIZE: u64 = 12;
/// Most events that one call reports.
const EVENTS_MAX: u64 = 1024;
/// `EPOLL_CTL_ADD`, `EPOLL_CTL_DEL`, `EPOLL_CTL_MOD`.
const ADD: u64 = 1;
const REMOVE: u64 = 2;
const MODIFY: u64 = 3;

/// epoll_ctl(2).
pub(super) fn control(thread: Box<Thread>, epoll: Arc<Epoll>, arguments: Arguments) -> Flow {
    let [_, operation, fd, at, ..] = arguments;
    let files = mounted::files(&thread.process);
    match files.and_then(|files| files.lock().socket(fd)) {
        Some(socket) => {
            let result = control_socket(&thread, &epoll, &socket, (operation, fd as u32, at));
            finish(thread, result)
        }
        None if matches!(operation, ADD | REMOVE) => control_base(thread, epoll, arguments),
        None => delegate(thread, EPOLL_CTL, arguments),
    }
}

fn control_socket(
    thread: &Thread,
    epoll: &Epoll,
    socket: &Arc<Socket>,
    (operation, fd, at): (u64, u32, u64),
) -> Result<u64, Errno> {
    let (is_done, refusal) = match operation {
        ADD => {
            has_room(4096)?;
            let interest = read_interest(thread, at)?;
            (epoll.add(fd, socket, interest), Errno::EEXIST)
        }
        MODIFY => {
            let interest = read_interest(thread, at)?;
            (epoll.modify(fd, socket, interest), Errno::ENOENT)
        }
        REMOVE => (epoll.remove(fd, socket), Errno::ENOENT),
        _ => (false, Errno::EINVAL),
    };
    is_done.then_some(0).ok_or(refusal)
}

fn read_interest(thread: &Thread, at: u64) -> Result<Interest, Errno> {
    let mut bytes = [0; EVENT_SIZE as usize];
    thread.process.space().read(at, &mut bytes)?;
    let events = u32::from_le_bytes(core::array::from_fn(|byte| bytes[byte]));
    let data = u64::from_le_bytes(core::array::from_fn(|byte| bytes[4 + byte]));
    Ok(Interest::new(events, data))
}

/// Has the base watch a descriptor of its own, or no longer.
fn control_base(thread: Box<Thread>, epoll: Arc<Epoll>, arguments: Arguments) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = thread.remote_syscall(EPOLL_CTL, arguments).await;
        if result.is_ok() {
            epoll.count_other(arguments[1] == ADD);
        }
        finish(thread, result)
    })
}

/// epoll_wait(2).
pub(super) fn wait_ms(thread: Box<Thread>, epoll: Arc<Epoll>, arguments: Arguments) -> Flow {
    let timeout_ns = of_ms(arguments[3]);
    wait_for(thread, epoll, arguments, Ok(timeout_ns))
}

/// epoll_pwait(2).
pub(super) fn wait_masked(thread: Box<Thread>, epoll: Arc<Epoll>, arguments: Arguments) -> Flow {
    let timeout_ns = of_ms(arguments[3]);
    masked(thread, epoll, arguments, Ok(timeout_ns))
}

/// epoll_pwait2(2).
pub(super) fn wait_precisely(thread: Box<Thread>, epoll: Arc<Epoll>, arguments: Arguments) -> Flow {
    let timeout_ns = read(&thread, arguments[3], Unit::Nanoseconds);
    masked(thread, epoll, arguments, timeout_ns)
}

fn masked(
    mut thread: Box<Thread>,
    epoll: Arc<Epoll>,
    arguments: Arguments,
    timeout_ns: Result<Option<u64>, Errno>,
) -> Flow {
    match block(&mut thread, arguments[4], arguments[5]) {
        Ok(()) => wait_for(thread, epoll, arguments, timeout_ns),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Blocks a set of signals until the call is over, if there is one.
pub(super) fn block(thread: &mut Thread, set: u64, size: u64) -> Result<(), Errno> {
    if set != 0 {
        checked_size(size)?;
        let set = read_set(thread, set)?;
        block_during_call(thread, set);
    }
    Ok(())
}

fn wait_for(
    mut thread: Box<Thread>,
    epoll: Arc<Epoll>,
    [fd, at, most, ..]: Arguments,
    timeout_ns: Result<Option<u64>, Errno>,
) -> Flow {
    let most = match u64::try_from(most as i32) {
        Ok(most @ 1..) => most.min(EVENTS_MAX),
        _ => return finish(thread, Err(Errno::EINVAL)),
    };
    let timeout_ns = match timeout_ns {
        Ok(timeout_ns) => timeout_ns,
        Err(error) => return finish(thread, Err(error)),
    };
    let number = thread.context.registers.rax;
    let waiting = Waiting {
        epoll,
        fd,
        at,
        most,
        deadline_ns: deadline_ns(&mut thread, timeout_ns),
        is_look: timeout_ns == Some(0),
    };
    // Usually there is something to do at once.
    if !waiting.needs_base(&thread) && waiting.epoll.is_ready() {
        let taken = waiting.take(&thread);
        return finish(thread, taken);
    }
    Flow::handler(thread, move |mut thread| async move {
        let result = waiting.run(&mut thread).await;
        if result == Err(Errno::EINTR) {
            thread.interruptible_call = Some(number);
        }
        finish(thread, result)
    })
}

/// A call that waits for events.
struct Waiting {
    epoll: Arc<Epoll>,
    fd: u64,
    at: u64,
    most: u64,
    deadline_ns: Option<u64>,
    /// It does not wait.
    is_look: bool,
}

impl Waiting {
    /// Whether the base is to be looked at, whatever sockets are ready for.
    fn needs_base(&self, thread: &Thread) -> bool {
        self.epoll.has_others() && BaseCall::is_due(thread)
    }

    /// Takes events of sockets. Returns their number.
    fn take(&self, thread: &Thread) -> Result<u64, Errno> {
        let mut space = thread.process.space();
        let end = self.at.wrapping_add(self.most * EVENT_SIZE);
        // What is taken cannot be put back.
        space.can_write(self.at, end)?;
        let taken = self.epoll.take(self.most as usize);
        for ((events, data), index) in taken.iter().zip(0..) {
            let mut bytes = [0; EVENT_SIZE as usize];
            bytes[..4].copy_from_slice(&events.to_le_bytes());
            bytes[4..].copy_from_slice(&data.to_le_bytes());
            space.write(self.at + index * EVENT_SIZE, &bytes)?;
        }
        Ok(taken.len() as u64)
    }

    /// The base's part, whose events come behind those that are there.
    fn base_call(&self, taken: u64) -> BaseCall {
        let at = self.at + taken * EVENT_SIZE;
        BaseCall {
            number: EPOLL_WAIT,
            arguments: [self.fd, at, self.most - taken, 0, 0, 0],
            timeout: 3,
            times: [0, u64::from(u32::MAX)],
        }
    }

    async fn run(self, thread: &mut Thread) -> Result<u64, Errno> {
        loop {
            let taken = self.take(thread)?;
            let has_others = self.epoll.has_others();
            let looks = has_others && (BaseCall::is_due(thread) || self.is_look && taken == 0);
            let found = match looks && taken < self.most {
                // What is taken is reported, whatever the base says.
                true => self.base_call(taken).look(thread).await,
                false => Ok(0),
            };
            match found {
                Ok(0) if taken == 0 && !self.is_look => {}
                Ok(found) => return Ok(taken + found),
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            }
            let is_ready = || self.epoll.is_ready();
            let woken = match has_others {
                true => {
                    let call = self.base_call(0);
                    match call.wait(thread, self.deadline_ns, is_ready).await {
                        Ok(woken) => woken,
                        Err(result) => return result,
                    }
                }
                false => wait(thread, self.deadline_ns, is_ready).await,
            };
            match woken {
                Woken::Ready => {}
                Woken::Interrupted => return Err(Errno::EINTR),
                Woken::Expired => return Ok(0),
            }
        }
    }
}

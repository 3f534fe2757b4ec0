//! select(2) and pselect6(2), of sockets of the server and descriptors of the base. The base's part has
//! the program's own sets, without the sockets; then these are added.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_abi::net::ready;

use crate::hw::clock;
use crate::hw::memory::room::reserve_in;
use crate::model::errno::Errno;
use crate::model::number::SELECT;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::routed::{Arguments, Routed};
use crate::syscall::net::epoll::block;
use crate::syscall::net::time::{Unit, deadline_ns, read, to_bytes};
use crate::syscall::net::wait::{BaseCall, Woken, wait};
use crate::task::flow::Flow;
use crate::task::mounted::MountedFiles;
use crate::task::socket::Socket;
use crate::task::thread::Thread;

/// `FD_SETSIZE`, and the bytes of such a set.
const COUNT_MAX: usize = 1024;
const SET_BYTES: usize = COUNT_MAX / 8;

type Set = [u8; SET_BYTES];
/// Sets of descriptors to be read, to be written, and with something exceptional.
type Sets = [Set; 3];

/// What a socket has to be ready for to be in each set.
const WANTED: [u32; 3] = [
    ready::IN | ready::HUP | ready::ERROR,
    ready::OUT | ready::ERROR,
    0,
];

fn has(set: &Set, fd: usize) -> bool {
    set[fd / 8] >> (fd % 8) & 1 != 0
}

/// select(2).
pub(super) fn select(
    thread: Box<Thread>,
    files: &spin::Mutex<MountedFiles>,
    [count, read_set, write_set, other_set, timeout, _]: Arguments,
) -> Routed {
    let at = [read_set, write_set, other_set];
    with_call(thread, files, (count, at), |thread, call| {
        let timeout_ns = read(&thread, timeout, Unit::Microseconds);
        call.begin(thread, timeout_ns, (timeout, Unit::Microseconds))
    })
}

/// pselect6(2).
pub(super) fn select_masked(
    thread: Box<Thread>,
    files: &spin::Mutex<MountedFiles>,
    [count, read_set, write_set, other_set, timeout, mask]: Arguments,
) -> Routed {
    let at = [read_set, write_set, other_set];
    with_call(thread, files, (count, at), |mut thread, call| {
        let timeout_ns = read(&thread, timeout, Unit::Nanoseconds);
        let timeout_ns = timeout_ns.and_then(|timeout_ns| {
            block_indirectly(&mut thread, mask)?;
            Ok(timeout_ns)
        });
        call.begin(thread, timeout_ns, (timeout, Unit::Nanoseconds))
    })
}

/// Blocks the set of signals that a structure of address and size names.
fn block_indirectly(thread: &mut Thread, at: u64) -> Result<(), Errno> {
    if at == 0 {
        return Ok(());
    }
    let mut bytes = [0; 16];
    thread.process.space().read(at, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
    block(thread, word(0), word(8))
}

fn with_call(
    thread: Box<Thread>,
    files: &spin::Mutex<MountedFiles>,
    (count, at): (u64, [u64; 3]),
    begin: impl FnOnce(Box<Thread>, Call) -> Flow,
) -> Routed {
    match Call::read(&thread, files, count, at) {
        Ok(Some(call)) => Routed::Server(begin(thread, call)),
        Ok(None) => Routed::Base(thread),
        Err(error) => Routed::Server(finish(thread, Err(error))),
    }
}

/// A call.
struct Call {
    count: u64,
    at: [u64; 3],
    /// What the program wants, and of that what the base is to look at.
    wanted: Sets,
    of_base: Sets,
    sockets: Vec<(usize, Arc<Socket>)>,
}

impl Call {
    /// Reads the sets. `None` if they have no socket of a server.
    fn read(
        thread: &Thread,
        files: &spin::Mutex<MountedFiles>,
        count: u64,
        at: [u64; 3],
    ) -> Result<Option<Self>, Errno> {
        let count = u64::from(count as u32);
        if count > COUNT_MAX as u64 {
            return Ok(None);
        }
        let mut wanted = [[0; SET_BYTES]; 3];
        // Sets are whole words.
        let bytes = count.div_ceil(64) as usize * 8;
        for (set, at) in wanted.iter_mut().zip(at) {
            if at != 0 {
                thread.process.space().read(at, &mut set[..bytes])?;
            }
        }
        let mut call = Self {
            count,
            at,
            wanted,
            of_base: wanted,
            sockets: Vec::new(),
        };
        for fd in 0..count as usize {
            let is_wanted = wanted.iter().any(|set| has(set, fd));
            if is_wanted && let Some(socket) = files.lock().socket(fd as u64) {
                reserve_in(&mut call.sockets, 1)?;
                call.sockets.push((fd, socket));
                let all = call.of_base.iter_mut();
                all.for_each(|set| set[fd / 8] &= !(1 << (fd % 8)));
            }
        }
        Ok((!call.sockets.is_empty()).then_some(call))
    }

    fn begin(
        self,
        mut thread: Box<Thread>,
        timeout_ns: Result<Option<u64>, Errno>,
        (rest_at, unit): (u64, Unit),
    ) -> Flow {
        let timeout_ns = match timeout_ns {
            Ok(timeout_ns) => timeout_ns,
            Err(error) => return finish(thread, Err(error)),
        };
        let number = thread.context.registers.rax;
        let deadline_ns = deadline_ns(&mut thread, timeout_ns);
        Flow::handler(thread, move |mut thread| async move {
            let is_look = timeout_ns == Some(0);
            let result = self.run(&mut thread, deadline_ns, is_look).await;
            if let Some(deadline_ns) = deadline_ns {
                let left_ns = deadline_ns.saturating_sub(clock::now_ns());
                // As on Linux, a timeout that cannot be written stays as it is.
                let bytes = to_bytes(left_ns, unit);
                let _ = thread.process.space().write(rest_at, &bytes);
            }
            if result == Err(Errno::EINTR) {
                // The sets are as they were.
                let _ = self.write(&thread, &self.wanted);
                thread.interruptible_call = Some(number);
            }
            finish(thread, result)
        })
    }

    fn write(&self, thread: &Thread, sets: &Sets) -> Result<(), Errno> {
        let bytes = self.count.div_ceil(64) as usize * 8;
        let mut space = thread.process.space();
        let mut all = self.at.iter().zip(sets).filter(|(at, _)| **at != 0);
        all.try_for_each(|(at, set)| space.write(*at, &set[..bytes]))
    }

    /// Returns in which sets a socket is.
    fn ready(&self, (fd, socket): &(usize, Arc<Socket>)) -> [bool; 3] {
        let ready = socket.readiness.get();
        core::array::from_fn(|set| ready & WANTED[set] != 0 && has(&self.wanted[set], *fd))
    }

    fn is_ready(&self) -> bool {
        self.sockets
            .iter()
            .any(|one| self.ready(one).contains(&true))
    }

    /// Writes the sets: those of the base are there if it has been asked, and sockets are added. Returns
    /// how many of these are in them.
    fn report(&self, thread: &Thread, has_asked: bool) -> Result<u64, Errno> {
        let mut sets = [[0; SET_BYTES]; 3];
        let bytes = self.count.div_ceil(64) as usize * 8;
        if has_asked {
            for (set, at) in sets.iter_mut().zip(self.at) {
                if at != 0 {
                    thread.process.space().read(at, &mut set[..bytes])?;
                }
            }
        }
        let mut count = 0;
        for one in &self.sockets {
            for (set, is_ready) in sets.iter_mut().zip(self.ready(one)) {
                set[one.0 / 8] |= u8::from(is_ready) << (one.0 % 8);
                count += u64::from(is_ready);
            }
        }
        self.write(thread, &sets)?;
        Ok(count)
    }

    /// The base's part. Its timeout is in the scratch words of the thread's slot, or none.
    fn base_call(&self, thread: &Thread) -> Result<BaseCall, Errno> {
        let [read_set, write_set, other_set] = self.at;
        let none = thread.put_scratch(&[0, 0]).ok_or(Errno::ENOMEM)?;
        Ok(BaseCall {
            number: SELECT,
            arguments: [self.count, read_set, write_set, other_set, 0, 0],
            timeout: 4,
            times: [none, 0],
        })
    }

    async fn run(
        &self,
        thread: &mut Thread,
        deadline_ns: Option<u64>,
        is_look: bool,
    ) -> Result<u64, Errno> {
        let has_others = self.of_base.iter().flatten().any(|byte| *byte != 0);
        loop {
            let looks = has_others && (!self.is_ready() && is_look || BaseCall::is_due(thread));
            let found = match looks {
                true => {
                    self.write(thread, &self.of_base)?;
                    self.base_call(thread)?.look(thread).await?
                }
                false => 0,
            };
            if found > 0 || is_look || self.is_ready() {
                return Ok(found + self.report(thread, looks)?);
            }
            let is_ready = || self.is_ready();
            let woken = match has_others {
                true => {
                    self.write(thread, &self.of_base)?;
                    let call = self.base_call(thread)?;
                    call.wait(thread, deadline_ns, is_ready).await
                }
                false => Ok(wait(thread, deadline_ns, is_ready).await),
            };
            match woken {
                Ok(Woken::Ready) => {}
                Ok(Woken::Interrupted) => return Err(Errno::EINTR),
                Ok(Woken::Expired) => return self.report(thread, false),
                Err(found) => return Ok(found? + self.report(thread, true)?),
            }
        }
    }
}

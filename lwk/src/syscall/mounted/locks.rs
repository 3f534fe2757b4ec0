//! Locks of servers' files: fcntl(2) and flock(2).
//!
//! A thread that has to wait for a lock makes its call again when it is woken, as after a signal that
//! concerns nobody. Who waits for each other in a circle waits for a signal: there is no `EDEADLK`.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::files::operation;

use crate::hw::memory::room::has_room_to_free;
use crate::model::errno::Errno;
use crate::model::file_locks::{FileLock, Kind, Owner};
use crate::model::futex::Waiter;
use crate::model::number::{FCNTL, FLOCK};
use crate::syscall::delegate::finish;
use crate::syscall::mounted::ask::{Ask, result};
use crate::syscall::mounted::routed::Arguments;
use crate::task::file_locks::{self, LockSpace};
use crate::task::flow::Flow;
use crate::task::futex;
use crate::task::mounted::{self, Description};
use crate::task::process_table;
use crate::task::thread::Thread;

/// Commands of fcntl(2) for locks: of the process, and of the open file description.
pub(super) mod command {
    pub(in crate::syscall::mounted) const GETLK: u64 = 5;
    pub(in crate::syscall::mounted) const SETLK: u64 = 6;
    pub(in crate::syscall::mounted) const SETLKW: u64 = 7;
    pub(in crate::syscall::mounted) const OFD_GETLK: u64 = 36;
    pub(in crate::syscall::mounted) const OFD_SETLK: u64 = 37;
    pub(in crate::syscall::mounted) const OFD_SETLKW: u64 = 38;
}

/// `struct flock`: type and whence, padding, start, length, process.
const SIZE: usize = 32;
const START: usize = 8;
const LENGTH: usize = 16;
const PROCESS: usize = 24;
/// `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
const READ: u16 = 0;
const WRITE: u16 = 1;
const UNLOCK: u16 = 2;
/// The last offset there is.
const LAST: i64 = i64::MAX;
/// Kernel memory for a waiting thread.
const WAIT_BYTES: u64 = 1024;

/// A lock that is asked for, or that one is to be removed (`kind` is none).
#[derive(Clone, Copy)]
struct Wanted {
    owner: Owner,
    kind: Option<Kind>,
    start: u64,
    last: u64,
    /// The caller waits for it.
    waits: bool,
    space: LockSpace,
    /// The call, which is made again after a wait.
    call: u64,
}

impl Wanted {
    fn lock(&self, kind: Kind) -> FileLock {
        FileLock {
            owner: self.owner,
            kind,
            start: self.start,
            last: self.last,
        }
    }
}

/// What a program says of a range (`struct flock`).
#[derive(Clone, Copy)]
struct Range {
    kind: u16,
    whence: u16,
    start: i64,
    length: i64,
    process: i32,
}

impl Range {
    fn read(thread: &Thread, address: u64) -> Result<Self, Errno> {
        let mut bytes = [0; SIZE];
        thread.process.space().read(address, &mut bytes)?;
        let short = |at: usize| u16::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        let long = |at: usize| i64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        Ok(Self {
            kind: short(0),
            whence: short(2),
            start: long(START),
            length: long(LENGTH),
            process: long(PROCESS) as i32,
        })
    }

    /// Returns the first and the last byte, of a file whose start is at `base` for this range.
    fn bytes(&self, base: i64) -> Result<(u64, u64), Errno> {
        let start = base.checked_add(self.start).ok_or(Errno::EOVERFLOW)?;
        let (start, last) = match self.length {
            0 => (start, LAST),
            1.. => {
                let last = start.checked_add(self.length - 1);
                (start, last.ok_or(Errno::EOVERFLOW)?)
            }
            _ => (
                start.checked_add(self.length).ok_or(Errno::EINVAL)?,
                start - 1,
            ),
        };
        match start {
            0.. => Ok((start as u64, last as u64)),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// flock(2).
pub(super) fn whole(thread: Box<Thread>, file: Arc<Description>, [_, how, ..]: Arguments) -> Flow {
    /// `LOCK_SH`, `LOCK_EX`, `LOCK_NB`, `LOCK_UN`.
    const SHARED: u64 = 1;
    const EXCLUSIVE: u64 = 2;
    const DONT_WAIT: u64 = 4;
    const REMOVE: u64 = 8;
    let how = u64::from(how as u32);
    let kind = match how & !DONT_WAIT {
        SHARED => Some(Kind::Shared),
        EXCLUSIVE => Some(Kind::Exclusive),
        REMOVE => None,
        _ => return finish(thread, Err(Errno::EINVAL)),
    };
    if file.is_place() {
        return finish(thread, Err(Errno::EBADF));
    }
    let wanted = Wanted {
        owner: Owner::Description(file.handle),
        kind,
        start: 0,
        last: LAST as u64,
        waits: how & DONT_WAIT == 0,
        space: LockSpace::Whole,
        call: FLOCK,
    };
    let mut thread = thread;
    // Once queued, the thread may be woken and run on another core at once.
    thread.extended.save();
    apply(thread, &file, &wanted)
}

/// fcntl(2) of a lock.
pub(super) fn range(
    thread: Box<Thread>,
    file: Arc<Description>,
    [_, command, address, ..]: Arguments,
) -> Flow {
    let range = match Range::read(&thread, address) {
        Ok(_) if file.is_place() => return finish(thread, Err(Errno::EBADF)),
        Ok(range) => range,
        Err(error) => return finish(thread, Err(error)),
    };
    /// `SEEK_SET`, `SEEK_CUR`, `SEEK_END`.
    const FROM_START: u16 = 0;
    const FROM_CURRENT: u16 = 1;
    const FROM_END: u16 = 2;
    let wanted = Asked {
        command: u64::from(command as u32),
        address,
        range,
    };
    // The server knows where the others are; asking moves nothing.
    let ask = match range.whence {
        FROM_START => {
            // Once queued, the thread may be woken and run on another core at once.
            let mut thread = thread;
            thread.extended.save();
            return from(thread, &file, wanted, 0);
        }
        FROM_CURRENT => Ask::of_file(&file, operation::SEEK, &[0, FROM_CURRENT.into()]),
        FROM_END => Ask::of_file(&file, operation::SIZE, &[]),
        _ => return finish(thread, Err(Errno::EINVAL)),
    };
    ask.then(move |thread, words| match result(&words) {
        Ok(base) => from(thread, &file, wanted, base.cast_signed()),
        Err(error) => finish(thread, Err(error)),
    })
    .submit(thread)
}

/// What a program asks of a range, with the address at which it says so.
#[derive(Clone, Copy)]
struct Asked {
    command: u64,
    address: u64,
    range: Range,
}

/// Does what is asked of a range, which starts from `base`. The thread's extended state is saved.
fn from(thread: Box<Thread>, file: &Arc<Description>, asked: Asked, base: i64) -> Flow {
    use command::{GETLK, OFD_GETLK, OFD_SETLK, OFD_SETLKW, SETLKW};
    let Asked { command, range, .. } = asked;
    let is_of_description = matches!(command, OFD_GETLK | OFD_SETLK | OFD_SETLKW);
    let owner = match is_of_description {
        true => Owner::Description(file.handle),
        false => Owner::Process(thread.process.pages().number()),
    };
    let kind = match range.kind {
        READ => Some(Kind::Shared),
        WRITE => Some(Kind::Exclusive),
        UNLOCK => None,
        _ => return finish(thread, Err(Errno::EINVAL)),
    };
    let (start, last) = match range.bytes(base) {
        Ok(_) if is_of_description && range.process != 0 => {
            return finish(thread, Err(Errno::EINVAL));
        }
        Ok(bytes) => bytes,
        Err(error) => return finish(thread, Err(error)),
    };
    let wanted = Wanted {
        owner,
        kind,
        start,
        last,
        waits: matches!(command, SETLKW | OFD_SETLKW),
        space: LockSpace::Ranges,
        call: FCNTL,
    };
    if matches!(command, GETLK | OFD_GETLK) {
        return tell(thread, file, &wanted, asked);
    }
    if kind.is_some_and(|kind| !file.allows(kind)) {
        return finish(thread, Err(Errno::EBADF));
    }
    apply(thread, file, &wanted)
}

/// Tells which lock is in the way of another.
fn tell(thread: Box<Thread>, file: &Description, wanted: &Wanted, asked: Asked) -> Flow {
    let Some(kind) = wanted.kind else {
        return finish(thread, Err(Errno::EINVAL));
    };
    let found = file_locks::conflict((file.id(), wanted.space), &wanted.lock(kind));
    let mut bytes = [0; SIZE];
    match found {
        None => bytes[..2].copy_from_slice(&UNLOCK.to_le_bytes()),
        Some(lock) => describe(&mut bytes, &lock),
    }
    // What is not in the way leaves all but the type as it was.
    let end = if found.is_some() { SIZE - 4 } else { 2 };
    let written = thread.process.space().write(asked.address, &bytes[..end]);
    finish(thread, written.map(|()| 0))
}

/// Writes a lock as a `struct flock`.
fn describe(bytes: &mut [u8; SIZE], lock: &FileLock) {
    let kind = match lock.kind {
        Kind::Shared => READ,
        Kind::Exclusive => WRITE,
    };
    let length = match lock.last {
        last if last == LAST.unsigned_abs() => 0,
        last => last - lock.start + 1,
    };
    // The description has no process.
    let process = match lock.owner {
        Owner::Process(number) => process_table::pid(number).map_or(-1, |pid| pid as i32),
        Owner::Description(_) => -1,
    };
    bytes[..2].copy_from_slice(&kind.to_le_bytes());
    bytes[START..START + 8].copy_from_slice(&lock.start.to_le_bytes());
    bytes[LENGTH..LENGTH + 8].copy_from_slice(&length.to_le_bytes());
    bytes[PROCESS..PROCESS + 4].copy_from_slice(&process.to_le_bytes());
}

/// Whether the thread's process has a file open.
fn is_open(thread: &Thread, file: &Description) -> bool {
    let files = mounted::files(&thread.process);
    files.is_some_and(|files| files.lock().is_any_of(file.id()))
}

/// Sets or removes a lock, or waits for it. The thread's extended state is saved.
fn apply(mut thread: Box<Thread>, file: &Arc<Description>, wanted: &Wanted) -> Flow {
    let place = (file.id(), wanted.space);
    let Some(kind) = wanted.kind else {
        file_locks::unset(place, wanted.owner, (wanted.start, wanted.last));
        return finish(thread, Ok(0));
    };
    let lock = wanted.lock(kind);
    match file_locks::set(place, lock) {
        // Another thread may have closed it meanwhile, or ended the process: nothing else would unlock it.
        Ok(true) if matches!(wanted.owner, Owner::Process(_)) && !is_open(&thread, file) => {
            file_locks::unset(place, wanted.owner, (wanted.start, wanted.last));
            return finish(thread, Err(Errno::EBADF));
        }
        Ok(true) => return finish(thread, Ok(0)),
        Ok(false) if !wanted.waits => return finish(thread, Err(Errno::EAGAIN)),
        Ok(false) => {}
        Err(error) => return finish(thread, Err(error)),
    }
    if has_room_to_free(WAIT_BYTES).is_err() {
        return finish(thread, Err(Errno::ENOLCK));
    }
    thread.interruptible_call = Some(wanted.call);
    let should_wait = |thread: &mut Thread| {
        let is_interrupted = thread.handle.is_signal_pending() || thread.must_not_block();
        !is_interrupted && file_locks::conflict(place, &lock).is_some()
    };
    let waiter = Waiter::new(thread, u32::MAX, None);
    match futex::wait(file_locks::key(place.0), waiter, should_wait) {
        None => Flow::Blocked,
        // It is free by now, or a signal comes first: the call is made again afterwards.
        Some(thread) => finish(thread, Err(Errno::EINTR)),
    }
}

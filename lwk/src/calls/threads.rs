//! Calls about threads.

use alloc::boxed::Box;

use super::{Flow, answer};
use crate::cores;
use crate::delegation::Desk;
use crate::memory::has_room;
use crate::process::errno::{Errno, of_result};
use crate::process::rseq::{self, Registration};
use crate::process::{THREAD_BYTES, Thread};
use insula_abi::lwk::request;

const SET_GS: u64 = 0x1001;
const SET_FS: u64 = 0x1002;
const GET_FS: u64 = 0x1003;
const GET_GS: u64 = 0x1004;

/// arch_prctl(2).
pub(super) fn arch_prctl(thread: &mut Thread, code: u64, address: u64) -> Result<u64, Errno> {
    match code {
        SET_GS | SET_FS => match thread.context.set_base(code == SET_GS, address) {
            true => Ok(0),
            false => Err(Errno::EPERM),
        },
        GET_GS | GET_FS => {
            let context = &thread.context;
            let base = if code == GET_GS {
                context.gs_base
            } else {
                context.fs_base
            };
            thread.process.space().write(address, &base.to_le_bytes())?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// What clone(2) must be asked for: a thread shares all that there is.
const THREAD_FLAGS: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000;
pub(super) const SET_TLS: u64 = 0x8_0000;
pub(super) const PARENT_SET_TID: u64 = 0x10_0000;
pub(super) const CHILD_CLEAR_TID: u64 = 0x20_0000;
pub(super) const CHILD_SET_TID: u64 = 0x100_0000;
/// That it is a thread at all.
const THREAD: u64 = 0x1_0000;

/// What clone(2) and clone3(2) are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Request {
    pub(super) flags: u64,
    pub(super) exit_signal: u64,
    /// Where a descriptor of a process is written.
    pub(super) descriptor: u64,
    pub(super) parent_tid: u64,
    pub(super) child_tid: u64,
    /// The stack pointer to begin with; 0: that of the caller.
    pub(super) stack: u64,
    pub(super) tls: u64,
}

/// clone(2).
pub(super) fn clone(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    const SIGNAL: u64 = 0xff;
    let [flags, stack, parent_tid, child_tid, tls, _] = a;
    let request = Request {
        flags: u64::from(flags as u32) & !SIGNAL,
        exit_signal: flags & SIGNAL,
        descriptor: parent_tid,
        parent_tid,
        child_tid,
        stack,
        tls,
    };
    thread_or_process(thread, &request)
}

/// clone3(2): the same, by a structure.
pub(super) fn clone3(thread: Box<Thread>, address: u64, size: u64) -> Flow {
    match read_request(&thread, address, size) {
        Ok(request) => thread_or_process(thread, &request),
        Err(error) => answer(thread, Err(error)),
    }
}

fn read_request(thread: &Thread, address: u64, size: u64) -> Result<Request, Errno> {
    /// Bytes of `struct clone_args` of the first kernel that had it, and of the newest.
    const SIZE_MIN: u64 = 64;
    const SIZE: usize = 88;
    if size < SIZE_MIN {
        return Err(Errno::EINVAL);
    }
    if size > SIZE as u64 {
        return Err(Errno::E2BIG);
    }
    let mut bytes = [0; SIZE];
    let given = &mut bytes[..size as usize];
    thread.process.space().read(address, given)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
    let [flags, descriptor, child_tid, parent_tid] = [0, 1, 2, 3].map(word);
    let [exit_signal, stack, stack_size, tls] = [4, 5, 6, 7].map(word);
    if exit_signal > u64::from(crate::process::signals::SIGNALS) {
        return Err(Errno::EINVAL);
    }
    Ok(Request {
        flags,
        exit_signal,
        descriptor,
        parent_tid,
        child_tid,
        stack: stack.checked_add(stack_size).ok_or(Errno::EINVAL)?,
        tls,
    })
}

fn thread_or_process(mut thread: Box<Thread>, request: &Request) -> Flow {
    if request.flags & THREAD == 0 {
        return super::processes::clone(thread, request);
    }
    let result = clone_thread(&mut thread, request);
    answer(thread, result)
}

fn clone_thread(thread: &mut Thread, request: &Request) -> Result<u64, Errno> {
    let flags = request.flags;
    if flags & THREAD_FLAGS != THREAD_FLAGS {
        return Err(Errno::EINVAL);
    }
    let mut new = new_thread(thread)?;
    let id = new.id;
    match prepare(thread, &mut new, request) {
        Ok(()) => cores::send(new),
        Err(error) => {
            new.give_way();
            cores::end(new);
            return Err(error);
        }
    }
    Ok(id)
}

/// Gives a new thread what it begins with.
fn prepare(thread: &mut Thread, new: &mut Thread, request: &Request) -> Result<(), Errno> {
    let (flags, id) = (request.flags, new.id);
    new.context = thread.context;
    new.extended = copy_of_extended(thread)?;
    new.context.registers.rax = 0;
    if request.stack != 0 {
        new.context.registers.rsp = request.stack;
    }
    if flags & SET_TLS != 0 && !new.context.set_base(false, request.tls) {
        return Err(Errno::EPERM);
    }
    let tid = (id as u32).to_le_bytes();
    for (flag, address) in [
        (PARENT_SET_TID, request.parent_tid),
        (CHILD_SET_TID, request.child_tid),
    ] {
        if flags & flag != 0 {
            thread.process.space().write(address, &tid)?;
        }
    }
    if flags & CHILD_CLEAR_TID != 0 {
        new.clear_at_end = request.child_tid;
    }
    Ok(())
}

/// rseq(2).
pub(super) fn rseq(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    let [area, size, flags, signature, ..] = a;
    let given = Registration {
        area,
        size: size as u32,
        signature: signature as u32,
    };
    rseq::register(thread, given, u64::from(flags as u32))
}

/// membarrier(2).
pub(super) fn barrier(thread: &Thread, command: u64, flags: u64) -> Result<u64, Errno> {
    /// All cores, or those of the program; each asked for, or registered; with or without having
    /// them see changed code.
    const COMMANDS: u64 = 1 | 2 | 4 | 8 | 16 | 32 | 64;
    /// Those that do something.
    const BARRIERS: u64 = 1 | 2 | 8 | 32;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    match command {
        0 => Ok(COMMANDS),
        command if command & COMMANDS == 0 || !command.is_power_of_two() => Err(Errno::EINVAL),
        command => {
            if command & BARRIERS != 0 {
                let root = thread.process.space().root();
                cores::forget_all(root);
            }
            Ok(0)
        }
    }
}

/// Has the base make a thread of the proxy, and makes one that goes with it.
fn new_thread(thread: &mut Thread) -> Result<Box<Thread>, Errno> {
    has_room(THREAD_BYTES)?;
    let (id, desk) = thread
        .ask(request::THREAD, [0; 6])
        .map_err(|_| Errno::EINTR)?;
    let id = of_result(id)?;
    let pages = *thread.process.pages();
    if !pages.area().desk_is_of(desk, pages.number()) {
        return Err(Errno::EAGAIN);
    }
    let desk = Desk::sit(pages.area(), desk);
    let blocked = thread.process.signals().blocked(thread.id);
    let process = thread.process.clone();
    let mut new = Thread::new(process, (id, desk), blocked, thread.inherited())?;
    new.blocked_in_proxy = thread.blocked_in_proxy;
    Ok(new)
}

fn copy_of_extended(thread: &mut Thread) -> Result<insula_bare::ExtendedState, Errno> {
    thread.extended.save();
    thread.extended.duplicate().ok_or(Errno::ENOMEM)
}

/// getcpu(2).
pub(super) fn getcpu(thread: &mut Thread, cpu: u64, node: u64) -> Result<u64, Errno> {
    let core = thread.core;
    let mut space = thread.process.space();
    if cpu != 0 {
        space.write(cpu, &core.to_le_bytes())?;
    }
    if node != 0 {
        space.write(node, &[0; 4])?;
    }
    Ok(0)
}

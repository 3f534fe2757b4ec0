//! Thread calls.

use alloc::boxed::Box;

use insula_abi::lwk::request;
use insula_bare::{ExtendedState, SegmentBases};

use crate::base::slot::Slot;
use crate::hw::memory::room::has_room;
use crate::hw::tlb;
use crate::model::errno::{Errno, of_new_task};
use crate::model::rseq::Registration;
use crate::syscall::clone_arguments::{
    CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_PARENT_SETTID, CLONE_SETTLS, CloneArguments,
};
use crate::task::thread::{THREAD_BYTES, Thread};
use crate::task::{reap, rseq, run_queue};

const SET_GS: u64 = 0x1001;
const SET_FS: u64 = 0x1002;
const GET_FS: u64 = 0x1003;
const GET_GS: u64 = 0x1004;

/// arch_prctl(2).
pub(super) fn arch_prctl(thread: &mut Thread, [code, address, ..]: [u64; 6]) -> Result<u64, Errno> {
    match code {
        SET_GS | SET_FS if !SegmentBases::is_valid(address) => Err(Errno::EPERM),
        SET_GS | SET_FS => {
            thread.extended.save();
            let SegmentBases { fs, gs } = thread.extended.bases();
            let bases = match code {
                SET_GS => SegmentBases { fs, gs: address },
                _ => SegmentBases { fs: address, gs },
            };
            thread.extended.set_bases(bases);
            thread.extended.load();
            Ok(0)
        }
        GET_GS | GET_FS => {
            thread.extended.save();
            let SegmentBases { fs, gs } = thread.extended.bases();
            let base = if code == GET_GS { gs } else { fs };
            thread.process.space().write(address, &base.to_le_bytes())?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Flags that clone(2) of a thread requires: all is shared.
const THREAD_FLAGS: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000;

/// Creates a thread of the caller's process. Returns its id.
///
/// # Errors
/// As of clone(2).
pub(super) async fn clone_thread(
    thread: &mut Thread,
    clone_args: &CloneArguments,
) -> Result<u64, Errno> {
    let flags = clone_args.flags;
    if flags & THREAD_FLAGS != THREAD_FLAGS {
        return Err(Errno::EINVAL);
    }
    let mut new = new_thread(thread).await?;
    let id = new.id;
    match prepare(thread, &mut new, clone_args) {
        Ok(()) => run_queue::enqueue(new),
        Err(error) => {
            new.discard();
            reap::end_thread(new);
            return Err(error);
        }
    }
    Ok(id)
}

/// Sets the initial state of a new thread.
fn prepare(
    thread: &mut Thread,
    new: &mut Thread,
    clone_args: &CloneArguments,
) -> Result<(), Errno> {
    let (flags, id) = (clone_args.flags, new.id);
    new.context = thread.context;
    // Saved: this is a handler.
    new.extended = thread.extended.duplicate().ok_or(Errno::ENOMEM)?;
    new.context.registers.rax = 0;
    new.ports = thread.ports.clone();
    if clone_args.stack != 0 {
        new.context.registers.rsp = clone_args.stack;
    }
    if flags & CLONE_SETTLS != 0 {
        set_tls(&mut new.extended, clone_args.tls)?;
    }
    let tid = (id as u32).to_le_bytes();
    for (flag, address) in [
        (CLONE_PARENT_SETTID, clone_args.parent_tid),
        (CLONE_CHILD_SETTID, clone_args.child_tid),
    ] {
        if flags & flag != 0 {
            thread.process.space().write(address, &tid)?;
        }
    }
    if flags & CLONE_CHILD_CLEARTID != 0 {
        new.clear_child_tid = clone_args.child_tid;
    }
    Ok(())
}

/// Sets the base of FS, for thread-local storage.
fn set_tls(extended: &mut ExtendedState, fs: u64) -> Result<(), Errno> {
    if !SegmentBases::is_valid(fs) {
        return Err(Errno::EPERM);
    }
    let gs = extended.bases().gs;
    extended.set_bases(SegmentBases { fs, gs });
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
pub(super) fn membarrier(
    thread: &mut Thread,
    [command, flags, ..]: [u64; 6],
) -> Result<u64, Errno> {
    /// Supported commands: global, private, sync-core, each as a barrier and as a registration.
    const COMMANDS: u64 = 1 | 2 | 4 | 8 | 16 | 32 | 64;
    /// Commands that issue a barrier.
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
                tlb::shootdown(root);
            }
            Ok(0)
        }
    }
}

/// Has the base create a thread of the proxy, and creates the thread that it serves.
async fn new_thread(thread: &mut Thread) -> Result<Box<Thread>, Errno> {
    has_room(THREAD_BYTES)?;
    let (id, slot) = thread
        .remote_call(request::THREAD, [0; 6])
        .await
        .map_err(|_| Errno::EINTR)?;
    let id = of_new_task(id)?;
    let pages = *thread.process.pages();
    if !pages.area().slot_belongs_to(slot, pages.number()) {
        return Err(Errno::EAGAIN);
    }
    let slot = Slot::attach(pages.area(), slot);
    let blocked = thread.process.signals().blocked(thread.id);
    let process = thread.process.clone();
    let mut new = Thread::new(process, (id, slot), blocked, thread.inherited())?;
    new.blocked_in_proxy = thread.blocked_in_proxy;
    Ok(new)
}

/// getcpu(2).
pub(super) fn getcpu(thread: &mut Thread, [cpu, node, ..]: [u64; 6]) -> Result<u64, Errno> {
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

/// getpid(2).
pub(super) fn getpid(thread: &mut Thread, _: [u64; 6]) -> Result<u64, Errno> {
    Ok(thread.process.pages().pid())
}

/// gettid(2).
pub(super) fn gettid(thread: &mut Thread, _: [u64; 6]) -> Result<u64, Errno> {
    Ok(thread.id)
}

/// set_tid_address(2).
pub(super) fn set_tid_address(thread: &mut Thread, [word, ..]: [u64; 6]) -> Result<u64, Errno> {
    thread.clear_child_tid = word;
    Ok(thread.id)
}

/// set_robust_list(2).
pub(super) fn set_robust_list(
    thread: &mut Thread,
    [head, size, ..]: [u64; 6],
) -> Result<u64, Errno> {
    thread.robust_list = (head, size);
    Ok(0)
}

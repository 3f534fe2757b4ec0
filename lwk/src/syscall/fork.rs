//! Calls that fork.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::futex::Waiter;
use crate::syscall::clone_arguments::{
    CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_PARENT_SETTID, CLONE_SETTLS, CloneArguments,
};
use crate::syscall::delegate::finish;
use crate::task::flow::Flow;
use crate::task::fork::{self, ForkOptions};
use crate::task::process::Process;
use crate::task::thread::Thread;
use crate::task::{futex, vfork};

/// Flags of clone(2).
const CLONE_VM: u64 = 0x100;
const CLONE_FS: u64 = 0x200;
const CLONE_FILES: u64 = 0x400;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_PARENT: u64 = 0x8000;
const CLONE_SYSVSEM: u64 = 0x4_0000;
const CLONE_IO: u64 = 0x8000_0000;
/// New namespaces: mount, cgroup, UTS, IPC, user, PID, network.
const CLONE_NEW_NAMESPACES: u64 =
    0x2_0000 | 0x200_0000 | 0x400_0000 | 0x800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
/// Flags that the base implements.
const BASE_FLAGS: u64 =
    CLONE_FS | CLONE_PIDFD | CLONE_PARENT | CLONE_SYSVSEM | CLONE_IO | CLONE_NEW_NAMESPACES;
/// `SIGCHLD`.
const SIGCHLD: u64 = 17;

/// fork(2).
pub(super) fn fork(thread: Box<Thread>, _: [u64; 6]) -> Flow {
    let clone_args = CloneArguments {
        exit_signal: SIGCHLD,
        ..CloneArguments::default()
    };
    clone(thread, clone_args)
}

/// vfork(2).
pub(super) fn vfork(thread: Box<Thread>, _: [u64; 6]) -> Flow {
    let clone_args = CloneArguments {
        flags: CLONE_VM | CLONE_VFORK,
        exit_signal: SIGCHLD,
        ..CloneArguments::default()
    };
    clone(thread, clone_args)
}

/// clone(2) of a process, whose memory is a copy, or shared with CLONE_VM.
pub(super) fn clone(thread: Box<Thread>, clone_args: CloneArguments) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        match fork_child(&mut thread, &clone_args).await {
            Ok((id, child)) if child.blocks_parent() => wait_for_vfork(thread, id, &child),
            result => finish(thread, result.map(|(id, _)| id)),
        }
    })
}

async fn fork_child(
    thread: &mut Thread,
    clone_args: &CloneArguments,
) -> Result<(u64, alloc::sync::Arc<Process>), Errno> {
    let flags = clone_args.flags;
    let shares = flags & (CLONE_FILES | CLONE_SIGHAND);
    if shares != 0 {
        return Err(Errno::EINVAL);
    }
    let given = |flag: u64, value: u64| if flags & flag != 0 { value } else { 0 };
    let options = ForkOptions {
        flags: flags & BASE_FLAGS | clone_args.exit_signal,
        pidfd: given(CLONE_PIDFD, clone_args.pidfd),
        stack: clone_args.stack,
        tls: (flags & CLONE_SETTLS != 0).then_some(clone_args.tls),
        set_child_tid: given(CLONE_CHILD_SETTID, clone_args.child_tid),
        clear_child_tid: given(CLONE_CHILD_CLEARTID, clone_args.child_tid),
        clear_handlers: flags & CLONE_CLEAR_SIGHAND != 0,
        shares_mm: flags & CLONE_VM != 0,
        blocks_parent: flags & CLONE_VFORK != 0,
    };
    let (id, child) = fork::fork(thread, &options).await?;
    if flags & CLONE_PARENT_SETTID != 0 {
        // As on Linux, a bad address is not reported.
        let id = (id as u32).to_le_bytes();
        let at = clone_args.parent_tid;
        let store = move |thread: &Thread| thread.process.space().write(at, &id);
        let _ = thread.with_base_pages(store).await;
    }
    Ok((id, child))
}

/// Blocks a vfork(2) parent until the child executes a program or exits.
fn wait_for_vfork(mut thread: Box<Thread>, id: u64, child: &Process) -> Flow {
    thread.wake_result = Some(id);
    let key = vfork::vfork_key(&thread, child);
    let waiter = Waiter::new(thread, u32::MAX, None);
    let should_wait = |thread: &mut Thread| child.blocks_parent() && !thread.must_not_block();
    match futex::wait(key, waiter, should_wait) {
        None => Flow::Blocked,
        Some(mut thread) => {
            thread.wake_result = None;
            finish(thread, Ok(id))
        }
    }
}

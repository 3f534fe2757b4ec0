//! Calls that fork or execute a program.

use alloc::boxed::Box;

use super::threads::{
    CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_PARENT_SETTID, CLONE_SETTLS, CloneArguments,
};
use super::{Flow, finish};
use crate::process::errno::Errno;
use crate::process::initial_stack::{Arguments, Strings};
use crate::process::layout::ADDR_NO_RANDOMIZE;
use crate::process::{self, ForkOptions, PAGE, Thread, Waiter};

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
pub(super) fn fork(thread: Box<Thread>) -> Flow {
    let clone_args = CloneArguments {
        exit_signal: SIGCHLD,
        ..CloneArguments::default()
    };
    clone(thread, clone_args)
}

/// vfork(2).
pub(super) fn vfork(thread: Box<Thread>) -> Flow {
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
) -> Result<(u64, alloc::sync::Arc<process::Process>), Errno> {
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
    let (id, child) = process::fork(thread, &options).await?;
    if flags & CLONE_PARENT_SETTID != 0 {
        // As on Linux, a bad address is not reported.
        let id = (id as u32).to_le_bytes();
        let _ = thread.process.space().write(clone_args.parent_tid, &id);
    }
    Ok((id, child))
}

/// Blocks a vfork(2) parent until the child executes a program or exits.
fn wait_for_vfork(mut thread: Box<Thread>, id: u64, child: &process::Process) -> Flow {
    thread.wake_result = Some(id);
    let key = process::vfork_key(&thread, child);
    let waiter = Waiter::new(thread, u32::MAX, None);
    let should_wait = |thread: &mut Thread| child.blocks_parent() && !thread.must_not_block();
    match process::wait(key, waiter, should_wait) {
        None => Flow::Blocked,
        Some(mut thread) => {
            thread.wake_result = None;
            finish(thread, Ok(id))
        }
    }
}

/// Room for arguments and environment that is always allowed.
const ARGUMENTS_MIN: u64 = 128 << 10;
/// `AT_FDCWD`.
const AT_FDCWD: u64 = -100_i64 as u64;

/// execve(2).
pub(super) fn execve(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [path, arguments, environment, ..] = a;
    execveat(thread, [AT_FDCWD, path, arguments, environment, 0, 0])
}

/// execveat(2).
pub(super) fn execveat(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [directory, ..] = a;
    let exec_arguments = match exec_arguments(&mut thread, a) {
        Ok(exec_arguments) => exec_arguments,
        Err(error) => return finish(thread, Err(error)),
    };
    Flow::handler(thread, move |mut thread| async move {
        match process::exec(&mut thread, directory, exec_arguments).await {
            Ok(()) => complete_exec(thread).await,
            Err(error) => finish(thread, Err(error)),
        }
    })
}

/// Completes execve(2) once all other threads of the program have exited; waits for that.
pub(crate) async fn complete_exec(thread: Box<Thread>) -> Flow {
    let key = thread.process.exec_key();
    let waiter = Waiter::new(thread, u32::MAX, None);
    let should_wait = |thread: &mut Thread| !thread.is_alone() && !thread.process.is_exiting();
    let Some(mut thread) = process::wait(key, waiter, should_wait) else {
        return Flow::Blocked;
    };
    if thread.process.is_exiting() {
        return Flow::Continue(thread);
    }
    match process::finish_exec(&mut thread).await {
        // Its registers are those of the new program.
        Ok(()) => Flow::Continue(thread),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Reads path, arguments and environment.
fn exec_arguments(thread: &mut Thread, a: [u64; 6]) -> Result<Arguments, Errno> {
    const AT_EMPTY_PATH: u64 = 0x1000;
    let [directory, path, arguments, environment, flags, _] = a;
    let too_long = |error| match error {
        Errno::E2BIG => Errno::ENAMETOOLONG,
        other => other,
    };
    let path = thread.process.space().string(path, PAGE as usize - 1);
    let path = path.map_err(too_long)?;
    if flags & !AT_EMPTY_PATH != 0 {
        return Err(Errno::EINVAL);
    }
    let path = match path {
        path if !path.is_empty() => path,
        _ if flags & AT_EMPTY_PATH != 0 => {
            alloc::format!("/proc/self/fd/{}", directory as i32).into_bytes()
        }
        _ => return Err(Errno::ENOENT),
    };
    // As on Linux, a quarter of the stack limit.
    let room = process::layout::stack_limit(thread) / 4;
    let mut room = room.clamp(ARGUMENTS_MIN, process::ARGUMENTS_MAX) as usize;
    let mut arguments = strings(thread, arguments, &mut room)?;
    if arguments.count() == 0 {
        // As Linux does since 5.18.
        arguments.push(b"")?;
    }
    let environment = strings(thread, environment, &mut room)?;
    Ok(Arguments {
        path,
        arguments,
        environment,
    })
}

/// personality(2): only ADDR_NO_RANDOMIZE is supported.
pub(super) fn personality(thread: &Thread, wanted: u64) -> Result<u64, Errno> {
    const QUERY: u32 = u32::MAX;
    let process = &thread.process;
    match wanted as u32 {
        QUERY => Ok(process.personality()),
        wanted if u64::from(wanted) & !ADDR_NO_RANDOMIZE == 0 => {
            Ok(process.set_personality(wanted.into()))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Reads the strings of a null-terminated array of addresses.
fn strings(thread: &mut Thread, list: u64, room: &mut usize) -> Result<Strings, Errno> {
    let mut all = Strings::default();
    if list == 0 {
        return Ok(all);
    }
    loop {
        let mut space = thread.process.space();
        let mut address = [0; 8];
        space.read(list.wrapping_add(8 * all.count() as u64), &mut address)?;
        let address = u64::from_le_bytes(address);
        if address == 0 {
            return Ok(all);
        }
        all.add(|bytes| {
            let before = bytes.len();
            space.append_string(address, *room, bytes)?;
            let size = bytes.len() - before + 1 + size_of::<u64>();
            *room = room.checked_sub(size).ok_or(Errno::E2BIG)?;
            Ok(())
        })?;
    }
}

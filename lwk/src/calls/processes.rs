//! Calls by which a program becomes two, or another one.

use alloc::boxed::Box;

use super::threads::{CHILD_CLEAR_TID, CHILD_SET_TID, PARENT_SET_TID, Request, SET_TLS};
use super::{Flow, answer};
use crate::process::errno::Errno;
use crate::process::layout::NOT_RANDOM;
use crate::process::stack::{Arguments, Strings};
use crate::process::{self, Copying, PAGE, Thread, Waiter};

/// Flags of clone(2).
const SAME_MEMORY: u64 = 0x100;
const SAME_FOLDER: u64 = 0x200;
const SAME_FILES: u64 = 0x400;
const SAME_HANDLERS: u64 = 0x800;
const GIVES_DESCRIPTOR: u64 = 0x1000;
const WAITS: u64 = 0x4000;
const SAME_PARENT: u64 = 0x8000;
const SAME_SEMAPHORES: u64 = 0x4_0000;
const SAME_IO: u64 = 0x8000_0000;
/// Namespaces: of mounts, cgroups, hosts, IPC, users, ids, networks.
const NEW: u64 =
    0x2_0000 | 0x200_0000 | 0x400_0000 | 0x800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000;
const CLEAR_HANDLERS: u64 = 1 << 32;
/// What the base does by itself.
const OF_THE_BASE: u64 =
    SAME_FOLDER | GIVES_DESCRIPTOR | SAME_PARENT | SAME_SEMAPHORES | SAME_IO | NEW;
/// `SIGCHLD`.
const CHILD_ENDED: u64 = 17;

/// fork(2).
pub(super) fn fork(thread: Box<Thread>) -> Flow {
    let request = Request {
        exit_signal: CHILD_ENDED,
        ..Request::default()
    };
    clone(thread, &request)
}

/// vfork(2).
pub(super) fn vfork(thread: Box<Thread>) -> Flow {
    let request = Request {
        flags: SAME_MEMORY | WAITS,
        exit_signal: CHILD_ENDED,
        ..Request::default()
    };
    clone(thread, &request)
}

/// clone(2) of a process, with a copy of the program's memory or with that itself.
pub(super) fn clone(mut thread: Box<Thread>, request: &Request) -> Flow {
    match copy(&mut thread, request) {
        Ok((id, copy)) if copy.holds_parent() => wait_for(thread, id, &copy),
        result => answer(thread, result.map(|(id, _)| id)),
    }
}

fn copy(
    thread: &mut Thread,
    request: &Request,
) -> Result<(u64, alloc::sync::Arc<process::Process>), Errno> {
    let flags = request.flags;
    let shares = flags & (SAME_FILES | SAME_HANDLERS);
    if shares != 0 {
        return Err(Errno::EINVAL);
    }
    let given = |flag: u64, value: u64| if flags & flag != 0 { value } else { 0 };
    let how = Copying {
        flags: flags & OF_THE_BASE | request.exit_signal,
        told: given(GIVES_DESCRIPTOR, request.descriptor),
        stack: request.stack,
        tls: (flags & SET_TLS != 0).then_some(request.tls),
        set_tid: given(CHILD_SET_TID, request.child_tid),
        clear_at_end: given(CHILD_CLEAR_TID, request.child_tid),
        clears_handlers: flags & CLEAR_HANDLERS != 0,
        shares_memory: flags & SAME_MEMORY != 0,
        holds_parent: flags & WAITS != 0,
    };
    let (id, copy) = process::fork(thread, &how)?;
    if flags & PARENT_SET_TID != 0 {
        // As on Linux, nobody is told of a wrong address.
        let id = (id as u32).to_le_bytes();
        let _ = thread.process.space().write(request.parent_tid, &id);
    }
    Ok((id, copy))
}

/// Has a thread wait until a copy goes its own way.
fn wait_for(mut thread: Box<Thread>, id: u64, copy: &process::Process) -> Flow {
    thread.extended.save();
    thread.copy_let_go = Some(id);
    let key = process::copy_key(&thread, copy);
    let waiter = Waiter::new(thread, u32::MAX, None);
    let still = |thread: &mut Thread| copy.holds_parent() && !thread.cannot_wait();
    match process::wait(key, waiter, still) {
        None => Flow::Away,
        Some(mut thread) => {
            thread.copy_let_go = None;
            answer(thread, Ok(id))
        }
    }
}

/// What arguments and environment may take in any case.
const ARGUMENTS_MIN: u64 = 128 << 10;
/// `AT_FDCWD`.
const HERE: u64 = -100_i64 as u64;

/// execve(2).
pub(super) fn execve(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [path, arguments, environment, ..] = a;
    execveat(thread, [HERE, path, arguments, environment, 0, 0])
}

/// execveat(2).
pub(super) fn execveat(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [folder, ..] = a;
    let words = words(&mut thread, a);
    match words.and_then(|words| process::exec(&mut thread, folder, words)) {
        Ok(()) => go_on_executing(thread),
        Err(error) => answer(thread, Err(error)),
    }
}

/// The rest of execve(2), when all other threads of the program have ended. Until then it waits.
pub(crate) fn go_on_executing(mut thread: Box<Thread>) -> Flow {
    thread.extended.save();
    let key = thread.process.alone_key();
    let waiter = Waiter::new(thread, u32::MAX, None);
    let still = |thread: &mut Thread| !thread.is_alone() && !thread.process.is_ending();
    let Some(same) = process::wait(key, waiter, still) else {
        return Flow::Away;
    };
    thread = same;
    if thread.process.is_ending() {
        return Flow::On(thread);
    }
    match process::become_next(&mut thread) {
        // Its registers are those of the new program.
        Ok(()) => Flow::On(thread),
        Err(error) => answer(thread, Err(error)),
    }
}

/// What a program is to begin with.
fn words(thread: &mut Thread, a: [u64; 6]) -> Result<Arguments, Errno> {
    const OF_FILE: u64 = 0x1000;
    let [folder, path, arguments, environment, flags, _] = a;
    let too_long = |error| match error {
        Errno::E2BIG => Errno::ENAMETOOLONG,
        other => other,
    };
    let path = thread.process.space().string(path, PAGE as usize - 1);
    let path = path.map_err(too_long)?;
    if flags & !OF_FILE != 0 {
        return Err(Errno::EINVAL);
    }
    let path = match path {
        path if !path.is_empty() => path,
        _ if flags & OF_FILE != 0 => alloc::format!("/proc/self/fd/{}", folder as i32).into_bytes(),
        _ => return Err(Errno::ENOENT),
    };
    // As on Linux, by what the stack may become.
    let room = process::layout::limit(thread) / 4;
    let mut room = room.clamp(ARGUMENTS_MIN, process::ARGUMENTS_MAX) as usize;
    let mut arguments = strings(thread, arguments, &mut room)?;
    if arguments.count() == 0 {
        // As Linux has it since 5.18.
        arguments.push(b"")?;
    }
    let environment = strings(thread, environment, &mut room)?;
    Ok(Arguments {
        path,
        arguments,
        environment,
    })
}

/// personality(2): a program that is executed, or copied, is laid out at random or not. There is nothing
/// else to choose.
pub(super) fn personality(thread: &Thread, wanted: u64) -> Result<u64, Errno> {
    const QUERY: u32 = u32::MAX;
    let process = &thread.process;
    match wanted as u32 {
        QUERY => Ok(process.personality()),
        wanted if u64::from(wanted) & !NOT_RANDOM == 0 => {
            Ok(process.set_personality(wanted.into()))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The strings that a list of addresses leads to, which ends with 0.
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

//! Calls that execute a program.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::futex::Waiter;
use crate::model::initial_stack::{Arguments, Strings};
use crate::model::vma::PAGE;
use crate::syscall::delegate::finish;
use crate::syscall::executable;
use crate::task::flow::Flow;
use crate::task::loader::ARGUMENTS_MAX;
use crate::task::thread::Thread;
use crate::task::{exec, futex, layout};

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
        match exec::exec(&mut thread, directory, exec_arguments).await {
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
    let Some(mut thread) = futex::wait(key, waiter, should_wait) else {
        return Flow::Blocked;
    };
    if thread.process.is_exiting() {
        return Flow::Continue(thread);
    }
    match exec::finish_exec(&mut thread).await {
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
    let path = executable::followed(thread, &path).unwrap_or(path);
    // As on Linux, a quarter of the stack limit.
    let room = layout::stack_limit(thread) / 4;
    let mut room = room.clamp(ARGUMENTS_MIN, ARGUMENTS_MAX) as usize;
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
        mounts: Strings::default(),
    })
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

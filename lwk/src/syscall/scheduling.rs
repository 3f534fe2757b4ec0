//! Scheduling calls for threads of this program. Calls on other programs concern the base.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::hw::cores;
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::scheduling::{CoreSet, Priority, policy};
use crate::model::thread_handle::ThreadHandle;
use crate::syscall::delegate::{delegate, finish};
use crate::task::flow::Flow;
use crate::task::futex;
use crate::task::thread::Thread;

/// Returns the thread with an id; 0 is the caller.
fn thread_handle(thread: &Thread, id: u64) -> Result<Arc<ThreadHandle>, Errno> {
    match id as i32 {
        ..0 => Err(Errno::EINVAL),
        0 => Ok(Arc::clone(&thread.handle)),
        id => {
            let handle = thread.process.signals().handle(id as u64);
            handle.ok_or(Errno::ESRCH)
        }
    }
}

/// sched_getaffinity(2).
pub(super) fn affinity(thread: &mut Thread, [id, size, to, ..]: [u64; 6]) -> Result<u64, Errno> {
    let (cores, size) = (cores::up(), u64::from(size as u32));
    let bytes = cores.div_ceil(64) as usize * 8;
    if size < bytes as u64 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let set = thread_handle(thread, id)?.cores().below(cores).to_bytes();
    thread.process.space().write(to, &set[..bytes])?;
    Ok(bytes as u64)
}

/// sched_setaffinity(2): a thread on another core migrates.
pub(super) fn set_affinity(thread: Box<Thread>, [id, size, from, ..]: [u64; 6]) -> Flow {
    let set = read_set(&thread, size, from);
    let changed = set.and_then(|set| {
        let handle = thread_handle(&thread, id)?;
        handle.set_cores(set);
        cores::interrupt(handle.core.load(Ordering::Relaxed));
        Ok(0)
    });
    finish(thread, changed)
}

/// Reads a set of cores, of which one is this node's.
pub(super) fn read_set(thread: &Thread, size: u64, from: u64) -> Result<CoreSet, Errno> {
    let mut bytes = [0; CoreSet::SIZE];
    let size = bytes.len().min(size as u32 as usize);
    thread.process.space().read(from, &mut bytes[..size])?;
    let set = CoreSet::from_bytes(&bytes);
    let is_empty = set.below(cores::up()).is_empty();
    (!is_empty).then_some(set).ok_or(Errno::EINVAL)
}

/// sched_getscheduler(2).
pub(super) fn policy(thread: &mut Thread, [id, ..]: [u64; 6]) -> Result<u64, Errno> {
    Ok(thread_handle(thread, id)?.base_priority().policy().into())
}

/// sched_getparam(2).
pub(super) fn parameter(thread: &mut Thread, [id, to, ..]: [u64; 6]) -> Result<u64, Errno> {
    if to == 0 {
        return Err(Errno::EINVAL);
    }
    let realtime = thread_handle(thread, id)?.base_priority().realtime();
    thread.process.space().write(to, &realtime.to_le_bytes())?;
    Ok(0)
}

/// sched_setparam(2).
pub(super) fn set_parameter(thread: Box<Thread>, [id, from, ..]: [u64; 6]) -> Flow {
    set_policy(thread, id, None, from)
}

/// sched_setscheduler(2).
pub(super) fn set_scheduler(thread: Box<Thread>, [id, policy, from, ..]: [u64; 6]) -> Flow {
    set_policy(thread, id, Some(policy), from)
}

/// sched_yield(2).
pub(super) fn sched_yield(mut thread: Box<Thread>, _: [u64; 6]) -> Flow {
    thread.context.registers.rax = 0;
    Flow::Yield(thread)
}

/// Sets the policy, or without one only the priority.
fn set_policy(thread: Box<Thread>, id: u64, wanted: Option<u64>, from: u64) -> Flow {
    match policy_change(&thread, id, wanted, from) {
        Ok((handle, priority)) => change(thread, handle, priority, Errno::EPERM),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Returns the thread, and its new priority.
fn policy_change(
    thread: &Thread,
    id: u64,
    wanted: Option<u64>,
    from: u64,
) -> Result<(Arc<ThreadHandle>, Priority), Errno> {
    if from == 0 || wanted.is_some_and(|wanted| (wanted as i32) < 0) {
        return Err(Errno::EINVAL);
    }
    let mut realtime = [0; 4];
    thread.process.space().read(from, &mut realtime)?;
    let handle = thread_handle(thread, id)?;
    let now = handle.base_priority();
    let wanted = wanted.map_or(now.policy(), |wanted| wanted as u32);
    let priority = now.with_policy(wanted, u32::from_le_bytes(realtime))?;
    Ok((handle, priority))
}

/// Changes a thread's priority, if the program may do so; otherwise the call fails with `refused`.
fn change(
    thread: Box<Thread>,
    handle: Arc<ThreadHandle>,
    priority: Priority,
    refused: Errno,
) -> Flow {
    let now = handle.base_priority();
    let raises = priority.realtime() > now.realtime() || priority.nice() < now.nice();
    if !raises {
        apply(&handle, priority);
        return finish(thread, Ok(0));
    }
    Flow::handler(thread, move |mut thread| async move {
        // Without CAP_SYS_NICE on Linux, or a limit that allows it.
        let result = match thread.remote_syscall(number::GETEUID, [0; 6]).await {
            Ok(0) => {
                apply(&handle, priority);
                Ok(0)
            }
            Ok(_) => Err(refused),
            Err(error) => Err(error),
        };
        finish(thread, result)
    })
}

fn apply(handle: &Arc<ThreadHandle>, priority: Priority) {
    handle.set_priority(priority);
    futex::update_priority(handle);
}

/// sched_rr_get_interval(2).
pub(super) fn interval(thread: &mut Thread, [id, to, ..]: [u64; 6]) -> Result<u64, Errno> {
    let priority = thread_handle(thread, id)?.base_priority();
    let ns = match priority.policy() & !policy::RESET_ON_FORK {
        policy::FIFO => 0,
        _ => priority.slice_ns(),
    };
    let pair = [0, ns].map(u64::to_le_bytes).concat();
    thread.process.space().write(to, &pair)?;
    Ok(0)
}

/// Size of the first version of `struct sched_attr`, in bytes.
const ATTRIBUTES_SIZE: usize = 48;

/// sched_getattr(2).
pub(super) fn attributes(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    let [id, to, size, flags, ..] = a;
    if to == 0 || flags != 0 || !(ATTRIBUTES_SIZE as u64..=4096).contains(&size) {
        return Err(Errno::EINVAL);
    }
    let priority = thread_handle(thread, id)?.base_priority();
    let resets = u64::from(priority.policy() & policy::RESET_ON_FORK != 0);
    let policy = priority.policy() & !policy::RESET_ON_FORK;
    let mut bytes = [0; ATTRIBUTES_SIZE];
    bytes[..4].copy_from_slice(&(ATTRIBUTES_SIZE as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&policy.to_le_bytes());
    bytes[8..16].copy_from_slice(&resets.to_le_bytes());
    bytes[16..20].copy_from_slice(&priority.nice().to_le_bytes());
    bytes[20..24].copy_from_slice(&priority.realtime().to_le_bytes());
    thread.process.space().write(to, &bytes)?;
    Ok(0)
}

/// sched_setattr(2).
pub(super) fn set_attributes(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match attributes_change(&thread, a) {
        Ok((handle, priority)) => change(thread, handle, priority, Errno::EPERM),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Returns the thread, and its new priority.
fn attributes_change(thread: &Thread, a: [u64; 6]) -> Result<(Arc<ThreadHandle>, Priority), Errno> {
    /// `SCHED_FLAG_RESET_ON_FORK`, `SCHED_FLAG_KEEP_POLICY`, `SCHED_FLAG_KEEP_PARAMS`.
    const RESETS: u64 = 1;
    const KEEPS_POLICY: u64 = 8;
    const KEEPS_PARAMETERS: u64 = 16;
    let [id, from, flags, ..] = a;
    if from == 0 || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; ATTRIBUTES_SIZE];
    thread.process.space().read(from, &mut bytes)?;
    let half = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let how = u64::from(half(8)) | u64::from(half(12)) << 32;
    let size = half(0) as usize;
    if size != 0 && size < ATTRIBUTES_SIZE {
        return Err(Errno::E2BIG);
    }
    if how & !(RESETS | KEEPS_POLICY | KEEPS_PARAMETERS) != 0 {
        return Err(Errno::EINVAL);
    }
    let handle = thread_handle(thread, id)?;
    let now = handle.base_priority();
    let reset = if how & RESETS != 0 {
        policy::RESET_ON_FORK
    } else {
        0
    };
    let wanted = match how & KEEPS_POLICY {
        0 => half(4) | reset,
        _ => now.policy() | reset,
    };
    let priority = match how & KEEPS_PARAMETERS {
        0 => now
            .with_policy(wanted, half(20))?
            .with_nice(half(16) as i32),
        _ => now.with_policy(wanted, now.realtime())?,
    };
    Ok((handle, priority))
}

/// `PRIO_PROCESS`, which means a thread.
const PRIO_PROCESS: u64 = 0;

/// getpriority(2). Delegated for groups, users and other programs.
pub(super) fn nice(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    const NICE_OFFSET: i32 = 20;
    match thread_handle(&thread, a[1]) {
        Ok(handle) if a[0] == PRIO_PROCESS => {
            let nice = handle.base_priority().nice();
            finish(thread, Ok((NICE_OFFSET - nice) as u64))
        }
        _ => delegate(thread, number::GETPRIORITY, a),
    }
}

/// setpriority(2), likewise.
pub(super) fn set_nice(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match thread_handle(&thread, a[1]) {
        Ok(handle) if a[0] == PRIO_PROCESS => {
            let priority = handle.base_priority().with_nice(a[2] as i32);
            change(thread, handle, priority, Errno::EACCES)
        }
        _ => delegate(thread, number::SETPRIORITY, a),
    }
}

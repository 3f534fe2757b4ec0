//! Calls about threads.

use alloc::boxed::Box;

use super::Flow;
use super::answer;
use crate::delegation::Desk;
use crate::process::errno::{Errno, of_result};
use crate::process::{self, Thread, Waiter};
use crate::{clock, cores};
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
const SET_TLS: u64 = 0x8_0000;
const PARENT_SET_TID: u64 = 0x10_0000;
const CHILD_CLEAR_TID: u64 = 0x20_0000;
const CHILD_SET_TID: u64 = 0x100_0000;

/// clone(2): a thread. A process of its own would need a proxy of its own.
pub(super) fn clone(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    let [flags, stack, parent_tid, child_tid, tls, _] = a;
    if flags & THREAD_FLAGS != THREAD_FLAGS {
        return Err(Errno::ENOSYS);
    }
    let mut new = new_thread(thread)?;
    let id = new.id;
    new.context = thread.context;
    new.extended = copy_of_extended(thread)?;
    new.context.registers.rax = 0;
    if stack != 0 {
        new.context.registers.rsp = stack;
    }
    if flags & SET_TLS != 0 && !new.context.set_base(false, tls) {
        return Err(Errno::EPERM);
    }
    new.signal_mask = thread.signal_mask;
    let tid = (id as u32).to_le_bytes();
    for (flag, address) in [(PARENT_SET_TID, parent_tid), (CHILD_SET_TID, child_tid)] {
        if flags & flag != 0 {
            thread.process.space().write(address, &tid)?;
        }
    }
    if flags & CHILD_CLEAR_TID != 0 {
        new.clear_at_end = child_tid;
    }
    cores::send(new);
    Ok(id)
}

/// Has the base make a thread of the proxy, and makes one that goes with it.
fn new_thread(thread: &mut Thread) -> Result<Box<Thread>, Errno> {
    let (id, desk) = thread
        .ask(request::THREAD, [0; 6])
        .map_err(|_| Errno::EINTR)?;
    let id = of_result(id)?;
    let pages = *thread.process.pages();
    if !pages.area().desk_is_of(desk, pages.number()) {
        return Err(Errno::EAGAIN);
    }
    let desk = Desk::sit(pages.area(), desk);
    Thread::new(thread.process.clone(), id, desk, cores::least_loaded())
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

/// sched_getaffinity(2): all cores of the node.
pub(super) fn affinity(thread: &mut Thread, size: u64, mask: u64) -> Result<u64, Errno> {
    let cores = cores::up() as usize;
    let bytes = cores.div_ceil(64) * 8;
    if size < bytes as u64 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mut bits = alloc::vec![0_u8; bytes];
    (0..cores).for_each(|core| bits[core / 8] |= 1 << (core % 8));
    thread.process.space().write(mask, &bits)?;
    Ok(bytes as u64)
}

/// sched_setaffinity(2) of the calling thread, which moves to the first core of the mask.
pub(super) fn set_affinity(
    thread: &mut Thread,
    id: u64,
    size: u64,
    mask: u64,
) -> Result<(), Errno> {
    if id != 0 && id != thread.id {
        return Err(Errno::ESRCH);
    }
    let mut bits = [0_u8; insula_abi::NODE_CPUS_MAX / 8];
    let size = bits.len().min(size as usize);
    thread.process.space().read(mask, &mut bits[..size])?;
    let allowed = |core: &u32| bits[*core as usize / 8] >> (core % 8) & 1 != 0;
    let mut cores = (0..cores::up()).filter(allowed);
    let first = cores.next().ok_or(Errno::EINVAL)?;
    if !allowed(&thread.core) {
        cores::move_to(thread, first);
    }
    Ok(())
}

/// rt_sigprocmask(2).
pub(super) fn signal_mask(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    let [how, set, old, size, ..] = a;
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let before = thread.signal_mask;
    if set != 0 {
        let mut bytes = [0; 8];
        thread.process.space().read(set, &mut bytes)?;
        let set = u64::from_le_bytes(bytes);
        thread.signal_mask = match how {
            0 => before | set,
            1 => before & !set,
            2 => set,
            _ => return Err(Errno::EINVAL),
        };
    }
    if old != 0 {
        thread.process.space().write(old, &before.to_le_bytes())?;
    }
    Ok(0)
}

const WAIT: u64 = 0;
const WAKE: u64 = 1;
const REQUEUE: u64 = 3;
const CMP_REQUEUE: u64 = 4;
const WAIT_BITSET: u64 = 9;
const WAKE_BITSET: u64 = 10;
const COMMAND: u64 = 0x7f;
const CLOCK_REALTIME: u64 = 0x100;

/// futex(2).
pub(super) fn futex(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [address, operation, value, timeout, second, third] = a;
    let key = (thread.process.pages().number(), address);
    let other = (key.0, second);
    if !address.is_multiple_of(4) {
        return answer(thread, Err(Errno::EINVAL));
    }
    let many = |count: u64| u32::try_from(count as i32).unwrap_or(0);
    let result = match operation & COMMAND {
        WAIT => return wait(thread, operation, (address, value), timeout, u32::MAX),
        WAIT_BITSET => return wait(thread, operation, (address, value), timeout, third as u32),
        WAKE => Ok(process::wake(key, many(value), u32::MAX)),
        WAKE_BITSET if third as u32 == 0 => Err(Errno::EINVAL),
        WAKE_BITSET => Ok(process::wake(key, many(value), third as u32)),
        REQUEUE => {
            let done = process::requeue(key, other, (many(value), many(timeout)), || true);
            Ok(done.map_or(0, |(woken, _)| woken))
        }
        CMP_REQUEUE => compare_and_requeue(
            &mut thread,
            key,
            other,
            (many(value), many(timeout)),
            third as u32,
        ),
        _ => Err(Errno::ENOSYS),
    };
    answer(thread, result)
}

fn compare_and_requeue(
    thread: &mut Thread,
    from: (u64, u64),
    to: (u64, u64),
    counts: (u32, u32),
    expected: u32,
) -> Result<u64, Errno> {
    let mut found = Ok(0);
    let done = process::requeue(from, to, counts, || {
        found = thread.process.space().word(from.1);
        found == Ok(expected)
    });
    found?;
    done.map(|(woken, moved)| woken + moved)
        .ok_or(Errno::EAGAIN)
}

fn wait(
    mut thread: Box<Thread>,
    operation: u64,
    (address, value): (u64, u64),
    timeout: u64,
    groups: u32,
) -> Flow {
    if groups == 0 {
        return answer(thread, Err(Errno::EINVAL));
    }
    let deadline_ns = match deadline(&mut thread, operation, timeout) {
        Ok(deadline_ns) => deadline_ns,
        Err(error) => return answer(thread, Err(error)),
    };
    // Whoever wakes it may run it on another core at once.
    thread.extended.save();
    let key = (thread.process.pages().number(), address);
    let waiter = Waiter {
        who: thread,
        groups,
        deadline_ns,
    };
    let mut found = Ok(0);
    let still = |thread: &mut Thread| {
        found = thread.process.space().word(address);
        found == Ok(value as u32) && !thread.process.is_ending()
    };
    match process::wait(key, waiter, still) {
        None => Flow::Away,
        Some(thread) => answer(thread, found.and(Err(Errno::EAGAIN))),
    }
}

/// When a wait ends in any case, by the kernel's clock.
fn deadline(thread: &mut Thread, operation: u64, timeout: u64) -> Result<Option<u64>, Errno> {
    const NS_PER_S: u64 = 1_000_000_000;
    if timeout == 0 {
        return Ok(None);
    }
    let mut bytes = [0; 16];
    thread.process.space().read(timeout, &mut bytes)?;
    let half = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (seconds, ns) = (half(0), half(8));
    if ns >= NS_PER_S || (seconds as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    let time_ns = seconds.saturating_mul(NS_PER_S).saturating_add(ns);
    let now_ns = clock::now_ns();
    if operation & COMMAND == WAIT {
        return Ok(Some(now_ns.saturating_add(time_ns)));
    }
    let clock = thread.process.pages().area().clock();
    let base_now_ns = match operation & CLOCK_REALTIME {
        0 => clock.monotonic_ns(clock::stamp()),
        _ => clock.realtime_ns(clock::stamp()),
    };
    Ok(Some(
        now_ns.saturating_add(time_ns.saturating_sub(base_now_ns)),
    ))
}

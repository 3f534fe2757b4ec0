//! Calls about limits. Those on files, processes and the like are the proxy's, and hold for what it
//! does. Those on memory and time would fall on the proxy instead of the program: they are kept here,
//! where the program sees them, and those on its addresses and its stack are obeyed.

use alloc::boxed::Box;

use super::{Flow, answer, delegate, number};
use crate::process::errno::Errno;
use crate::process::layout::STACK_LIMIT;
use crate::process::{Limit, PAGE, Thread};

/// `RLIMIT_CPU`, `RLIMIT_DATA`, `RLIMIT_STACK`, `RLIMIT_RSS`, `RLIMIT_MEMLOCK`, `RLIMIT_AS`.
const OWN: [u64; 6] = [0, 2, STACK_LIMIT, 5, 8, ADDRESSES];
const ADDRESSES: u64 = 9;
/// How many resources there are.
const RESOURCES: u64 = 16;
/// `RLIMIT_NOFILE`.
const FILES: u64 = 7;

/// getrlimit(2).
pub(super) fn get(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match a[1] {
        0 if u64::from(a[0] as u32) < RESOURCES => answer(thread, Err(Errno::EFAULT)),
        _ => prlimit(thread, [0, a[0], 0, a[1], 0, 0]),
    }
}

/// setrlimit(2).
pub(super) fn set(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match a[1] {
        0 => answer(thread, Err(Errno::EFAULT)),
        _ => prlimit(thread, [0, a[0], a[1], 0, 0, 0]),
    }
}

/// prlimit(2).
pub(super) fn prlimit(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [pid, resource, new, old, ..] = a;
    let resource = u64::from(resource as u32);
    let new = match new {
        0 => Ok(None),
        new => read(&thread, new).map(Some),
    };
    let new = match new {
        Ok(new) => new,
        Err(error) => return answer(thread, Err(error)),
    };
    let is_self = pid as u32 == 0 || pid == thread.process.pages().pid();
    if !is_self || !is_kept(&thread, resource, new) {
        return delegate(thread, number::PRLIMIT64, a);
    }
    let result = change(&mut thread, resource, new).and_then(|before| match old {
        0 => Ok(0),
        old => write(&thread, old, before),
    });
    answer(thread, result)
}

/// Whether a limit is to be kept here. Of files only one that would leave no room for the proxy's own
/// descriptor, which a copy of the program needs: it is shown, but not obeyed.
fn is_kept(thread: &Thread, resource: u64, new: Option<Limit>) -> bool {
    if resource != FILES {
        return OWN.contains(&resource);
    }
    let own = thread.process.pages().descriptor();
    match new {
        Some(new) => {
            let is_low = new.soft.min(new.hard) <= own;
            if !is_low {
                thread.process.limits().remove(&FILES);
            }
            is_low
        }
        None => thread.process.limits().contains_key(&FILES),
    }
}

/// Sets a limit, if a new one is given; what it was.
fn change(thread: &mut Thread, resource: u64, new: Option<Limit>) -> Result<Limit, Errno> {
    let known = thread.process.limits().get(&resource).copied();
    let before = match known {
        Some(known) => known,
        None => of_the_base(thread, resource)?,
    };
    let Some(new) = new else {
        return Ok(before);
    };
    if new.soft > new.hard {
        return Err(Errno::EINVAL);
    }
    // As who has no CAP_SYS_RESOURCE.
    if new.hard > before.hard && thread.call(number::GETEUID, [0; 6])? != 0 {
        return Err(Errno::EPERM);
    }
    thread.process.limits().insert(resource, new);
    match resource {
        ADDRESSES => thread.process.space().set_limit(new.soft),
        STACK_LIMIT => thread.process.space().set_stack_limit(new.soft),
        _ => {}
    }
    Ok(before)
}

fn of_the_base(thread: &mut Thread, resource: u64) -> Result<Limit, Errno> {
    thread.with_buffer(PAGE, |thread, buffer| {
        thread.call(number::PRLIMIT64, [0, resource, 0, buffer, 0, 0])?;
        read(thread, buffer)
    })
}

fn read(thread: &Thread, from: u64) -> Result<Limit, Errno> {
    let mut bytes = [0; 16];
    thread.process.space().read(from, &mut bytes)?;
    Ok(Limit::from_bytes(&bytes))
}

fn write(thread: &Thread, to: u64, limit: Limit) -> Result<u64, Errno> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&limit.soft.to_le_bytes());
    bytes[8..].copy_from_slice(&limit.hard.to_le_bytes());
    thread.process.space().write(to, &bytes)?;
    Ok(0)
}

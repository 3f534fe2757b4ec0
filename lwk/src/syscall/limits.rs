//! Resource limits. Those on files, processes and so on are the proxy's, for which they hold. Those
//! on memory and CPU time would limit the proxy instead of the program: they are kept here. Of
//! these, RLIMIT_AS and RLIMIT_STACK are enforced.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::limits::Limit;
use crate::model::number;
use crate::model::vma::PAGE;
use crate::syscall::delegate::{delegate, finish};
use crate::task::flow::Flow;
use crate::task::layout::RLIMIT_STACK;
use crate::task::thread::Thread;

/// `RLIMIT_CPU`, `RLIMIT_DATA`, `RLIMIT_STACK`, `RLIMIT_RSS`, `RLIMIT_AS`.
const LOCAL: [u64; 5] = [0, 2, RLIMIT_STACK, 5, AS];
const AS: u64 = 9;
/// Number of resources.
const RESOURCES: u64 = 16;
/// `RLIMIT_NOFILE`.
const NOFILE: u64 = 7;

/// getrlimit(2).
pub(super) fn get(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match a[1] {
        0 if u64::from(a[0] as u32) < RESOURCES => finish(thread, Err(Errno::EFAULT)),
        _ => prlimit(thread, [0, a[0], 0, a[1], 0, 0]),
    }
}

/// setrlimit(2).
pub(super) fn set(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match a[1] {
        0 => finish(thread, Err(Errno::EFAULT)),
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
        Err(error) => return finish(thread, Err(error)),
    };
    let is_self = pid as u32 == 0 || pid == thread.process.pages().pid();
    if !is_self || !is_local(&thread, resource, new) {
        return delegate(thread, number::PRLIMIT64, a);
    }
    let known = thread.process.limits().get(&resource).copied();
    if let Some(before) = known.filter(|before| !needs_privilege(before, new)) {
        let result = change(&mut thread, resource, new).and_then(|()| report(&thread, old, before));
        return finish(thread, result);
    }
    Flow::handler(thread, move |mut thread| async move {
        let changed = change_with_base(&mut thread, resource, known, new).await;
        let result = changed.and_then(|before| report(&thread, old, before));
        finish(thread, result)
    })
}

/// Whether a new limit is above what the program may set without CAP_SYS_RESOURCE.
fn needs_privilege(before: &Limit, new: Option<Limit>) -> bool {
    new.is_some_and(|new| new.hard > before.hard)
}

/// Whether a limit is kept here. RLIMIT_NOFILE is, if it would leave no room for the mm mirror's
/// descriptor, which a child needs: then it is reported but not enforced.
fn is_local(thread: &Thread, resource: u64, new: Option<Limit>) -> bool {
    if resource != NOFILE {
        return LOCAL.contains(&resource);
    }
    let mirror_fd = thread.process.pages().mirror_fd();
    match new {
        Some(new) => {
            let is_low = new.soft.min(new.hard) <= mirror_fd;
            if !is_low {
                thread.process.limits().remove(&NOFILE);
            }
            is_low
        }
        None => thread.process.limits().contains_key(&NOFILE),
    }
}

/// Sets a limit if a new one is given.
fn change(thread: &mut Thread, resource: u64, new: Option<Limit>) -> Result<(), Errno> {
    let Some(new) = new else {
        return Ok(());
    };
    if new.soft > new.hard {
        return Err(Errno::EINVAL);
    }
    thread.process.limits().insert(resource, new);
    match resource {
        AS => thread.process.space().set_limit(new.soft),
        RLIMIT_STACK => thread.process.space().set_stack_size_limit(new.soft),
        _ => {}
    }
    Ok(())
}

/// Likewise, but asks the base for the old limit, if it is not known, and for the program's
/// privilege, if that matters. Returns the old limit.
async fn change_with_base(
    thread: &mut Thread,
    resource: u64,
    known: Option<Limit>,
    new: Option<Limit>,
) -> Result<Limit, Errno> {
    let before = match known {
        Some(known) => known,
        None => limit_of_base(thread, resource).await?,
    };
    if new.is_some_and(|new| new.soft > new.hard) {
        return Err(Errno::EINVAL);
    }
    // Linux demands CAP_SYS_RESOURCE.
    if needs_privilege(&before, new) && thread.remote_syscall(number::GETEUID, [0; 6]).await? != 0 {
        return Err(Errno::EPERM);
    }
    change(thread, resource, new)?;
    Ok(before)
}

async fn limit_of_base(thread: &mut Thread, resource: u64) -> Result<Limit, Errno> {
    let buffer = thread.map_buffer(PAGE).await?;
    let got = thread
        .remote_syscall(number::PRLIMIT64, [0, resource, 0, buffer, 0, 0])
        .await;
    let limit = got.and_then(|_| read(thread, buffer));
    thread.unmap_buffer(buffer, PAGE).await?;
    limit
}

/// Writes the old limit where the program wants it, if it does.
fn report(thread: &Thread, to: u64, before: Limit) -> Result<u64, Errno> {
    match to {
        0 => Ok(0),
        to => write(thread, to, before),
    }
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

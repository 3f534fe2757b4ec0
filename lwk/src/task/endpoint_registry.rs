//! Endpoints of this node by name, and the handles that processes have of them.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_abi::server::ENDPOINT_HANDLES_MAX;

use crate::hw::memory::room::has_room;
use crate::model::endpoint::EndpointLoad;
use crate::model::errno::Errno;
use crate::task::endpoint::{DEADLINES, Handle, Queues, resume_all, resume_ended};
use crate::task::process::Process;
use crate::task::thread::Thread;

/// Kernel memory needed for an endpoint, a handle, or a waiting thread.
const ENTRY_BYTES: u64 = 4096;

/// Name of an endpoint.
pub(crate) type Name = Vec<u8>;

static REGISTRY: spin::Mutex<Registry> = spin::Mutex::new(Registry {
    endpoints: BTreeMap::new(),
    handles: BTreeMap::new(),
});

/// All endpoints and handles.
struct Registry {
    /// Those with a server, a handle, or someone who waits.
    endpoints: BTreeMap<Name, Arc<Queues>>,
    /// By process and number.
    handles: BTreeMap<(u64, u32), Handle>,
}

impl Registry {
    fn add(&mut self, process: &Process, handle: Handle) -> Result<u32, Errno> {
        let of = process.pages().number();
        let used = self.handles.range((of, 0)..=(of, u32::MAX));
        let number = (0..ENDPOINT_HANDLES_MAX as u32)
            .zip(
                used.map(|((_, number), _)| Some(*number))
                    .chain(core::iter::repeat(None)),
            )
            .find_map(|(number, used)| (used != Some(number)).then_some(number));
        let number = number.ok_or(Errno::EMFILE)?;
        self.handles.insert((of, number), handle);
        Ok(number)
    }

    fn server_of(&self, queues: &Arc<Queues>) -> Option<Server> {
        let endpoint = Arc::as_ptr(queues).addr();
        let mut handles = self.handles.iter();
        let found = handles.find(|(_, handle)| handle.served() == Some(endpoint));
        found.map(|((process, _), _)| Server {
            process: *process,
            endpoint,
        })
    }

    /// Removes endpoints that nobody has any more.
    fn remove_unused(&mut self) {
        let is_used = |_: &Name, queues: &mut Arc<Queues>| {
            Arc::strong_count(queues) > 1 || !queues.lock().is_idle()
        };
        self.endpoints.retain(is_used);
    }
}

/// Locks the registry for a process that may have handles.
fn registry_for(process: &Process) -> Result<spin::MutexGuard<'static, Registry>, Errno> {
    has_room(ENTRY_BYTES)?;
    let registry = REGISTRY.lock();
    // Its handles have been closed, or will be under the lock.
    match process.is_exiting() {
        true => Err(Errno::EINTR),
        false => Ok(registry),
    }
}

/// Makes a process the server of an endpoint. Returns its handle.
///
/// # Errors
/// [`Errno::EEXIST`], [`Errno::EMFILE`], [`Errno::ENOMEM`], [`Errno::EINTR`].
pub(crate) fn create(process: &Process, name: Name) -> Result<u32, Errno> {
    let mut registry = registry_for(process)?;
    let queues = Arc::clone(registry.endpoints.entry(name).or_default());
    let generation = queues.lock().begin_server().ok_or(Errno::EEXIST)?;
    let handle = Handle {
        queues: Arc::clone(&queues),
        generation,
    };
    let number = registry.add(process, handle);
    if number.is_err() {
        queues.lock().end_server(generation);
        drop(queues);
        registry.remove_unused();
    }
    number
}

/// Opens an endpoint for a process as a client. Returns the handle.
///
/// # Errors
/// [`Errno::ENOENT`], [`Errno::EMFILE`], [`Errno::ENOMEM`], [`Errno::EINTR`].
pub(crate) fn open(process: &Process, name: &[u8]) -> Result<u32, Errno> {
    let mut registry = registry_for(process)?;
    let queues = registry.endpoints.get(name).ok_or(Errno::ENOENT)?;
    let handle = Handle {
        queues: Arc::clone(queues),
        generation: 0,
    };
    registry.add(process, handle)
}

/// Whether a process has any handle.
pub(super) fn has_handles(process: &Process) -> bool {
    let of = process.pages().number();
    let registry = REGISTRY.lock();
    let mut handles = registry.handles.range((of, 0)..=(of, u32::MAX));
    handles.next().is_some()
}

/// Returns an endpoint, which may have no server yet.
pub(crate) fn by_name(name: Name) -> Handle {
    let mut registry = REGISTRY.lock();
    Handle {
        queues: Arc::clone(registry.endpoints.entry(name).or_default()),
        generation: 0,
    }
}

/// Returns a handle of a process: a server's, or a client's.
///
/// # Errors
/// [`Errno::EBADF`].
pub(crate) fn find(process: &Process, number: u64, is_server: bool) -> Result<Handle, Errno> {
    let number = u32::try_from(number).map_err(|_| Errno::EBADF)?;
    let registry = REGISTRY.lock();
    let handle = registry.handles.get(&(process.pages().number(), number));
    let right = handle.filter(|handle| (handle.generation != 0) == is_server);
    right.cloned().ok_or(Errno::EBADF)
}

/// Closes a handle. Requests that the process has as a server end. Returns the endpoint that has no server
/// any more.
///
/// # Errors
/// [`Errno::EBADF`].
pub(crate) fn close(process: &Process, number: u64) -> Result<Option<usize>, Errno> {
    let number = u32::try_from(number).map_err(|_| Errno::EBADF)?;
    let key = (process.pages().number(), number);
    let mut registry = REGISTRY.lock();
    let handle = registry.handles.remove(&key).ok_or(Errno::EBADF)?;
    let endpoint = handle.served();
    let ended = handle.end();
    registry.remove_unused();
    drop(registry);
    resume_ended(ended);
    Ok(endpoint)
}

/// Closes all handles of a process, by its number: it exits, or executes another program. Returns the
/// endpoints that have no server any more.
pub(super) fn close_all(process: u64) -> Vec<usize> {
    let mut registry = REGISTRY.lock();
    let of = (process, 0)..=(process, u32::MAX);
    let closed: Vec<Handle> = registry
        .handles
        .extract_if(of, |_, _| true)
        .map(|(_, handle)| handle)
        .collect();
    if closed.is_empty() {
        return Vec::new();
    }
    let endpoints = closed.iter().filter_map(Handle::served).collect();
    let ended: Vec<_> = closed.into_iter().map(Handle::end).collect();
    registry.remove_unused();
    drop(registry);
    ended.into_iter().for_each(resume_ended);
    endpoints
}

/// The server of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// Number of its process.
    pub(crate) process: u64,
    /// What tells the endpoint from others, as of [`Handle::id`].
    pub(crate) endpoint: usize,
}

/// An endpoint, as it is listed.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Its name.
    pub(crate) name: Name,
    /// Its server, if it has one.
    pub(crate) server: Option<Server>,
    /// What there is to do.
    pub(crate) load: EndpointLoad,
}

/// Returns all endpoints in the order of their names; at most `most`, and how many there are.
pub(crate) fn list(most: usize) -> (usize, Vec<Listed>) {
    let registry = REGISTRY.lock();
    let named = registry.endpoints.iter().take(most);
    let listed = named.map(|(name, queues)| Listed {
        name: name.clone(),
        server: registry.server_of(queues),
        load: queues.lock().load(),
    });
    (registry.endpoints.len(), listed.collect())
}

/// Returns the server of a name, if there is one.
pub(crate) fn server_of(name: &[u8]) -> Option<Server> {
    let registry = REGISTRY.lock();
    registry.server_of(registry.endpoints.get(name)?)
}

/// Returns the endpoints of which a process is the server.
pub(crate) fn served_by(process: &Process) -> Vec<usize> {
    let of = process.pages().number();
    let registry = REGISTRY.lock();
    let handles = registry.handles.range((of, 0)..=(of, u32::MAX));
    handles.filter_map(|(_, handle)| handle.served()).collect()
}

/// Wakes the threads of a process that wait at endpoints and that `is_chosen` accepts, with EINTR.
pub(super) fn interrupt_waiters(process: u64, is_chosen: impl Fn(&Thread) -> bool) {
    let is_of = |thread: &Thread| thread.process.pages().number() == process;
    let may_go = |thread: &Thread| thread.file_call.is_none() || thread.must_not_block();
    let is_chosen = |thread: &Thread| is_of(thread) && is_chosen(thread) && may_go(thread);
    resume_all(remove(is_chosen, |_| true), Err(Errno::EINTR));
}

/// Wakes threads of a core whose timeout has expired, with ETIMEDOUT.
pub(super) fn expire(core: u32, now_ns: u64) {
    let is_due = |deadline_ns: Option<u64>| deadline_ns.is_some_and(|at_ns| at_ns <= now_ns);
    let expired = remove(|thread| thread.core == core, is_due);
    // Before the queues are looked at: other cores may add to them.
    DEADLINES.set(core, None);
    for queues in REGISTRY.lock().endpoints.values() {
        let queues = queues.lock();
        DEADLINES.add(core, queues.next_deadline(|thread| thread.core == core));
    }
    resume_all(expired, Err(Errno::ETIMEDOUT));
}

/// Removes waiting threads from all endpoints.
fn remove(
    is_chosen: impl Fn(&Thread) -> bool,
    is_due: impl Fn(Option<u64>) -> bool,
) -> Vec<Box<Thread>> {
    let mut removed = Vec::new();
    for queues in REGISTRY.lock().endpoints.values() {
        let mut queues = queues.lock();
        removed.extend(queues.remove_senders(|one| {
            let is_chosen = one.sender.as_deref().is_some_and(&is_chosen);
            is_chosen && is_due(one.deadline_ns)
        }));
        removed.extend(
            queues.remove_receivers(|one| is_chosen(&one.receiver) && is_due(one.deadline_ns)),
        );
    }
    removed
}

//! Endpoints of this node by name, the handles that processes have of them, and the threads that wait
//! there (protocol: `abi/include/insula_server.h`; queues: [`crate::model::endpoint`]).

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_abi::server::ENDPOINT_HANDLES_MAX;

use crate::hw::cores;
use crate::hw::memory::room::has_room;
use crate::model::endpoint::{Endpoint, EndpointLoad, NotTaken, Receiver, Request};
use crate::model::errno::{Errno, as_result};
use crate::task::core_deadlines::CoreDeadlines;
use crate::task::process::Process;
use crate::task::run_queue;
use crate::task::thread::Thread;

/// Kernel memory needed for an endpoint, a handle, or a waiting thread.
const ENTRY_BYTES: u64 = 4096;

/// Name of an endpoint.
pub(crate) type Name = Vec<u8>;
/// A request of a thread.
pub(crate) type ThreadRequest = Box<Request<Box<Thread>>>;
/// A thread that waits for requests.
pub(crate) type ThreadReceiver = Receiver<Box<Thread>>;
type Queues = spin::Mutex<Endpoint<Box<Thread>>>;

/// Timeouts of the threads that wait at endpoints.
static DEADLINES: CoreDeadlines = CoreDeadlines::new();

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

/// A handle of a process.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    queues: Arc<Queues>,
    /// Generation of the server that its process is; 0 for a client's.
    pub(crate) generation: u64,
}

impl Handle {
    /// Returns what tells its endpoint from others, as long as there is a handle.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.queues).addr()
    }
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

    fn server_of(&self, queues: &Arc<Queues>) -> Option<u64> {
        let mut handles = self.handles.iter();
        let is_server =
            |handle: &Handle| handle.generation != 0 && Arc::ptr_eq(&handle.queues, queues);
        let found = handles.find(|(_, handle)| is_server(handle));
        found.map(|((process, _), _)| *process)
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

/// Returns all endpoints in the order of their names: the name, the number of the server's process, if there
/// is a server, and the load. At most `most`, and how many there are.
pub(crate) fn list(most: usize) -> (usize, Vec<(Name, Option<u64>, EndpointLoad)>) {
    let registry = REGISTRY.lock();
    let named = registry.endpoints.iter().take(most);
    let listed = named.map(|(name, queues)| {
        (
            name.clone(),
            registry.server_of(queues),
            queues.lock().load(),
        )
    });
    (registry.endpoints.len(), listed.collect())
}

/// Returns the number of the process that is the server of a name.
pub(crate) fn server_of(name: &[u8]) -> Option<u64> {
    let registry = REGISTRY.lock();
    registry.server_of(registry.endpoints.get(name)?)
}

/// Senders whose server has gone, and threads of that server.
type Ended = (Vec<Box<Thread>>, Vec<Box<Thread>>);

fn resume_ended((senders, receivers): Ended) {
    resume_all(senders, Err(Errno::ECONNRESET));
    resume_all(receivers, Err(Errno::EBADF));
}

/// What becomes of a request that is sent.
pub(crate) enum Sent {
    /// It waits until a server receives it.
    Queued,
    /// This server has waited for it, and is to be given it.
    To(ThreadReceiver, ThreadRequest),
}

impl Handle {
    /// Returns its endpoint, if it is the server's.
    fn served(&self) -> Option<usize> {
        (self.generation != 0).then(|| self.id())
    }

    fn end(self) -> Ended {
        match self.generation {
            0 => (Vec::new(), Vec::new()),
            generation => self.queues.lock().end_server(generation),
        }
    }

    /// Takes out a waiting server to be given a request, or else queues the request.
    pub(crate) fn send(&self, request: ThreadRequest) -> Sent {
        let mut queues = self.queues.lock();
        if let Some(receiver) = queues.take_receiver() {
            return Sent::To(receiver, request);
        }
        drop(queues);
        self.keep(0, request, |queues, request| {
            queues.queue(request);
            Ok(())
        });
        Sent::Queued
    }

    /// Queues a request that nobody waits for, if there is a server. Does not wait itself.
    pub(crate) fn post(&self, request: ThreadRequest) {
        let mut queues = self.queues.lock();
        if !queues.has_server() {
            return;
        }
        queues.queue(request);
        let receiver = queues.take_receiver();
        drop(queues);
        if let Some(receiver) = receiver {
            receive_by_itself(receiver);
        }
    }

    /// Queues an interrupt for this server. Returns the core of the thread that has waited for it, if one has.
    /// Does not wait itself.
    pub(crate) fn interrupt(&self, request: ThreadRequest) -> Option<u32> {
        let mut queues = self.queues.lock();
        if !queues.queue_interrupt(self.generation, request) {
            return None;
        }
        let receiver = queues.take_receiver();
        drop(queues);
        receiver.map(receive_by_itself)
    }

    /// Queues a request again that was received, but could not be handed over.
    pub(crate) fn send_again(&self, request: ThreadRequest) {
        self.keep(0, request, |queues, request| {
            queues.queue_again(request);
            Ok(())
        });
    }

    /// Takes out the request to be received next, and a number for it.
    pub(crate) fn receive(&self) -> Option<(u64, ThreadRequest)> {
        let mut queues = self.queues.lock();
        let request = queues.take_queued()?;
        Some((queues.new_number(), request))
    }

    /// Returns a number for a request.
    pub(crate) fn new_number(&self) -> u64 {
        self.queues.lock().new_number()
    }

    /// Has a thread wait for requests.
    ///
    /// # Errors
    /// The thread, with [`Errno::EAGAIN`] if there is a request, [`Errno::EINTR`] if it must not wait,
    /// [`Errno::EBADF`] if the handle has been closed.
    pub(crate) fn wait(&self, receiver: ThreadReceiver) -> Result<(), (Errno, Box<Thread>)> {
        let mut queues = self.queues.lock();
        let thread = &receiver.receiver;
        let error = match queues.may_wait(self.generation) {
            Some(_) if is_interrupted(thread) => Errno::EINTR,
            Some(true) => {
                DEADLINES.add(thread.core, receiver.deadline_ns);
                queues.wait(receiver);
                return Ok(());
            }
            Some(false) => Errno::EAGAIN,
            None => Errno::EBADF,
        };
        Err((error, receiver.receiver))
    }

    /// Has the server of a generation have a request that it was given on that core. If it has gone, the
    /// next one receives the request.
    pub(crate) fn serve(
        &self,
        number: u64,
        request: ThreadRequest,
        (generation, core): (u64, u32),
    ) {
        let sender = request.sender.as_deref();
        let crosses = sender.is_some_and(|sender| sender.core != core);
        self.keep(number, request, |queues, request| {
            match queues.serve(number, request, generation) {
                Ok(()) => queues.count(crosses),
                Err(request) => queues.queue_again(request),
            }
            Ok(())
        });
    }

    /// Counts an interrupt that this server was given.
    pub(crate) fn count_interrupt(&self) {
        self.queues.lock().count_interrupt();
    }

    /// Takes out a request that this server has.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub(crate) fn take(&self, number: u64) -> Result<ThreadRequest, NotTaken> {
        self.queues.lock().take(number)
    }

    /// Puts a request back that was taken out. Its sender goes on if it has to.
    pub(crate) fn put_back(&self, number: u64, request: ThreadRequest) {
        self.keep(number, request, |queues, request| {
            queues.put_back(number, request)
        });
    }

    /// Forgets a request that was taken out: its sender gets its reply.
    pub(crate) fn finish(&self, number: u64) {
        self.queues.lock().finish(number);
    }

    /// Has `put` put a request in its place again, or has its sender go on, if something has ended its
    /// wait while it was in none.
    fn keep(
        &self,
        number: u64,
        request: ThreadRequest,
        put: impl FnOnce(&mut Endpoint<Box<Thread>>, ThreadRequest) -> Result<(), ThreadRequest>,
    ) {
        let deadline_ns = request.deadline_ns;
        let core = request.sender.as_ref().map(|sender| sender.core);
        let mut queues = self.queues.lock();
        // Who interrupts it sets its flags, then looks here.
        if request.sender.as_deref().is_some_and(is_interrupted) {
            queues.finish(number);
            drop(queues);
            return end(request, Err(Errno::EINTR));
        }
        let core = core.filter(|_| deadline_ns.is_some());
        if let Some(core) = core {
            DEADLINES.add(core, deadline_ns);
        }
        let refused = put(&mut queues, request);
        drop(queues);
        match (refused, core) {
            (Err(request), _) => end(request, Err(Errno::ECONNRESET)),
            (Ok(()), Some(core)) if core != cores::number() => cores::interrupt(core),
            (Ok(()), _) => {}
        }
    }
}

/// Has a thread that waits for requests make its call again, which receives them. Returns its core.
fn receive_by_itself(receiver: ThreadReceiver) -> u32 {
    let mut thread = receiver.receiver;
    let core = thread.core;
    thread.repeat_call();
    run_queue::enqueue(thread);
    core
}

/// Has the sender of a request go on, if it has one.
#[expect(clippy::boxed_local, reason = "requests are handed on so")]
pub(crate) fn end(request: ThreadRequest, result: Result<u64, Errno>) {
    if let Some(sender) = request.sender {
        resume(sender, result);
    }
}

/// Whether a thread that waits has to go on.
fn is_interrupted(thread: &Thread) -> bool {
    let by_signal = thread.file_call.is_none() && thread.is_wakeable_by_signal();
    thread.must_not_block() || by_signal
}

/// Has a thread go on that has waited, with a result. Of a call that this kernel makes
/// for it the program sees no message.
pub(crate) fn resume(mut thread: Box<Thread>, result: Result<u64, Errno>) {
    let call = thread.file_call.take().map(|call| call.socket.is_some());
    thread.context.registers.rax = as_result(match (result, call) {
        (Err(Errno::ETIMEDOUT), Some(true)) => Err(Errno::ENETDOWN),
        (Err(Errno::ECONNRESET | Errno::ETIMEDOUT), Some(false)) => Err(Errno::EIO),
        (result, _) => result,
    });
    run_queue::enqueue(thread);
}

fn resume_all(threads: Vec<Box<Thread>>, result: Result<u64, Errno>) {
    threads
        .into_iter()
        .for_each(|thread| resume(thread, result));
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

/// Returns the earliest timeout of a core's threads that wait at endpoints, which may have been woken
/// since.
pub(super) fn next_deadline(core: u32) -> Option<u64> {
    DEADLINES.next(core)
}

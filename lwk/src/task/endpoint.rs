//! The threads that wait at an endpoint, for requests or replies (protocol: `abi/include/insula_server.h`; queues:
//! [`crate::model::endpoint`]; names: [`crate::task::endpoint_registry`]).

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::hw::cores;
use crate::model::endpoint::{Endpoint, NotTaken, Receiver, Request};
use crate::model::errno::{Errno, as_result};
use crate::task::core_deadlines::CoreDeadlines;
use crate::task::run_queue;
use crate::task::thread::Thread;

/// A request of a thread.
pub(crate) type ThreadRequest = Box<Request<Box<Thread>>>;
/// A thread that waits for requests.
pub(crate) type ThreadReceiver = Receiver<Box<Thread>>;
pub(super) type Queues = spin::Mutex<Endpoint<Box<Thread>>>;

/// Timeouts of the threads that wait at endpoints.
pub(super) static DEADLINES: CoreDeadlines = CoreDeadlines::new();

/// A handle of a process.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(super) queues: Arc<Queues>,
    /// Generation of the server that its process is; 0 for a client's.
    pub(crate) generation: u64,
}

impl Handle {
    /// Returns what tells its endpoint from others, as long as there is a handle.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.queues).addr()
    }

    /// Returns the generation of the server that its endpoint has now; 0 without one.
    pub(crate) fn server_generation(&self) -> u64 {
        self.queues.lock().server()
    }
}

/// Senders whose server has gone, and threads of that server.
pub(super) type Ended = (Vec<Box<Thread>>, Vec<Box<Thread>>);

pub(super) fn resume_ended((senders, receivers): Ended) {
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
    pub(super) fn served(&self) -> Option<usize> {
        (self.generation != 0).then(|| self.id())
    }

    pub(super) fn end(self) -> Ended {
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
                thread.handle.serves.wait_at(self.id());
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

pub(super) fn resume_all(threads: Vec<Box<Thread>>, result: Result<u64, Errno>) {
    threads
        .into_iter()
        .for_each(|thread| resume(thread, result));
}

/// Returns the earliest timeout of a core's threads that wait at endpoints, which may have been woken
/// since.
pub(super) fn next_deadline(core: u32) -> Option<u64> {
    DEADLINES.next(core)
}

//! Asking a server for a program: a request, whose reply is the result of the program's call, or is
//! followed by more.

use alloc::boxed::Box;
use alloc::vec::Vec;

use insula_abi::server::MESSAGE_WORDS;

use crate::hw::clock;
use crate::hw::memory::room::has_room;
use crate::model::endpoint::{Request, Window, Windows};
use crate::model::errno::{Errno, of_result};
use crate::syscall::delegate::finish;
use crate::syscall::message::send::submit;
use crate::task::endpoint::Handle;
use crate::task::file_call::FileCall;
use crate::task::file_offset::OffsetRequest;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Time within which a server has to answer: one that hangs does not hold programs for ever, and one
/// that is restarted has time for that.
const TIMEOUT_NS: u64 = 60_000_000_000;
/// Kernel memory needed for a request, beside its paths.
const REQUEST_BYTES: u64 = 4096;

/// Words of a reply.
pub(in crate::syscall) type Words = [u64; MESSAGE_WORDS];

/// What follows a reply.
pub(in crate::syscall) struct Then(
    pub(in crate::syscall) Box<dyn FnOnce(Box<Thread>, Words) -> Flow + Send>,
);

/// What is asked of a server.
pub(in crate::syscall) struct Ask {
    endpoint: Handle,
    operation: u32,
    words: Words,
    socket: Option<u64>,
    offset: Option<OffsetRequest>,
    head: Vec<u8>,
    readable: Windows,
    writable: Windows,
    then: Option<Then>,
}

impl Ask {
    /// Asks the server of an endpoint.
    pub(in crate::syscall) fn new(endpoint: &Handle, operation: u32, words: Words) -> Self {
        Self {
            endpoint: endpoint.clone(),
            operation,
            words,
            socket: None,
            offset: None,
            head: Vec::new(),
            readable: Windows::default(),
            writable: Windows::default(),
            then: None,
        }
    }

    /// Has the reply say what a socket is ready for.
    pub(in crate::syscall) fn of_socket(mut self, handle: u64) -> Self {
        self.socket = Some(handle);
        self
    }

    /// Has the reply say what the offset of a description is then.
    pub(in crate::syscall) fn of_offset(mut self, request: OffsetRequest) -> Self {
        self.offset = Some(request);
        self
    }

    /// Adds bytes that the server may read, in front of the program's.
    pub(in crate::syscall) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.head.extend_from_slice(bytes);
        self
    }

    /// Lets the server read memory of the program.
    pub(in crate::syscall) fn reads(mut self, windows: impl Into<Windows>) -> Self {
        self.readable = windows.into();
        self
    }

    /// Lets it write memory of the program.
    pub(in crate::syscall) fn writes(mut self, windows: impl Into<Windows>) -> Self {
        self.writable = windows.into();
        self
    }

    /// The same, of a size.
    pub(in crate::syscall) fn writes_at(self, address: u64, length: u64) -> Self {
        self.writes(Window { address, length })
    }

    /// Has something follow the reply.
    pub(in crate::syscall) fn then(
        mut self,
        then: impl FnOnce(Box<Thread>, Words) -> Flow + Send + 'static,
    ) -> Self {
        self.then = Some(Then(Box::new(then)));
        self
    }

    /// Asks on behalf of the thread that the core runs.
    pub(in crate::syscall) fn submit(self, mut thread: Box<Thread>) -> Flow {
        thread.extended.save();
        self.submit_saved(thread)
    }

    /// Asks on behalf of a thread whose extended state is saved, as a handler's is.
    pub(in crate::syscall) fn submit_saved(self, mut thread: Box<Thread>) -> Flow {
        if has_room(REQUEST_BYTES + self.head.len() as u64).is_err() {
            return finish(thread, Err(Errno::ENOMEM));
        }
        // Only its end interrupts it, as of a disk.
        thread.interruptible_call = None;
        thread.file_call = Some(FileCall {
            then: self.then.map(|then| Box::new(then) as Box<_>),
            socket: self.socket,
            offset: self.offset,
            reply: None,
        });
        let request = Box::new(Request {
            rank: thread.handle.priority().realtime(),
            sender: Some(thread),
            message: 0,
            operation: self.operation,
            words: self.words,
            head: self.head,
            readable: self.readable,
            writable: self.writable,
            deadline_ns: Some(clock::now_ns().saturating_add(TIMEOUT_NS)),
        });
        submit(&self.endpoint, request)
    }
}

/// Returns the result that a reply is.
pub(in crate::syscall) fn result(words: &Words) -> Result<u64, Errno> {
    of_result(words[0])
}

/// Goes on with the call of a thread whose reply has arrived.
pub(crate) fn go_on(mut thread: Box<Thread>) -> Flow {
    let Some(FileCall {
        then: Some(then),
        reply: Some(words),
        ..
    }) = thread.file_call.take()
    else {
        return Flow::Continue(thread);
    };
    match then.downcast::<Then>() {
        Ok(then) => (then.0)(thread, words),
        Err(_) => Flow::Continue(thread),
    }
}

//! Asking a file server.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use insula_abi::files::NONE;
use insula_abi::server::MESSAGE_WORDS;

use crate::hw::clock;
use crate::hw::memory::room::has_room;
use crate::model::endpoint::{Request, Window, Windows};
use crate::model::errno::{Errno, of_result};
use crate::syscall::delegate::finish;
use crate::syscall::message::send::submit;
use crate::syscall::mounted::target::Target;
use crate::task::file_call::FileCall;
use crate::task::flow::Flow;
use crate::task::mounted::{Description, Mount};
use crate::task::thread::Thread;

/// Time within which a server has to answer: one that hangs does not hold programs for ever, and one
/// that is restarted has time for that.
const TIMEOUT_NS: u64 = 60_000_000_000;
/// Kernel memory needed for a request, beside its paths.
const REQUEST_BYTES: u64 = 4096;

/// Words of a reply.
pub(super) type Words = [u64; MESSAGE_WORDS];

/// What follows a reply.
pub(super) struct Then(pub(super) Box<dyn FnOnce(Box<Thread>, Words) -> Flow + Send>);

/// What is asked of a server.
pub(super) struct Ask {
    mount: Arc<Mount>,
    operation: u32,
    words: Words,
    head: Vec<u8>,
    readable: Windows,
    writable: Windows,
    then: Option<Then>,
}

impl Ask {
    fn new(mount: &Arc<Mount>, operation: u32, handle: u64, more: &[u64]) -> Self {
        let mut words = Words::default();
        words[0] = handle;
        words[1..=more.len()].copy_from_slice(more);
        Self {
            mount: Arc::clone(mount),
            operation,
            words,
            head: Vec::new(),
            readable: Windows::default(),
            writable: Windows::default(),
            then: None,
        }
    }

    /// About an open file.
    pub(super) fn of_file(file: &Description, operation: u32, more: &[u64]) -> Self {
        Self::new(&file.mount, operation, file.handle, more)
    }

    /// About an open file, for an operation that has a path: an empty one.
    pub(super) fn of_file_itself(file: &Description, operation: u32, more: &[u64]) -> Self {
        Self::of_file(file, operation, more)
            .path(&file.mount.point)
            .path(b"")
    }

    /// About a path.
    pub(super) fn of_path(target: &Target, operation: u32, more: &[u64]) -> Self {
        let handle = target.directory.as_ref().map_or(NONE, |from| from.handle);
        Self::new(&target.mount, operation, handle, more)
            .path(&target.mount.point)
            .path(&target.path)
    }

    /// Adds a path.
    pub(super) fn path(mut self, path: &[u8]) -> Self {
        self.head.extend_from_slice(path);
        self.head.push(0);
        self
    }

    /// Adds bytes behind the paths.
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.head.extend_from_slice(bytes);
        self
    }

    /// Lets the server read memory of the program.
    pub(super) fn reads(mut self, windows: impl Into<Windows>) -> Self {
        self.readable = windows.into();
        self
    }

    /// Lets it write memory of the program.
    pub(super) fn writes(mut self, windows: impl Into<Windows>) -> Self {
        self.writable = windows.into();
        self
    }

    /// The same, of a size.
    pub(super) fn writes_at(self, address: u64, length: u64) -> Self {
        self.writes(Window { address, length })
    }

    /// Has something follow the reply.
    pub(super) fn then(
        mut self,
        then: impl FnOnce(Box<Thread>, Words) -> Flow + Send + 'static,
    ) -> Self {
        self.then = Some(Then(Box::new(then)));
        self
    }

    /// Asks on behalf of the thread that the core runs.
    pub(super) fn submit(self, mut thread: Box<Thread>) -> Flow {
        thread.extended.save();
        self.submit_saved(thread)
    }

    /// Asks on behalf of a thread whose extended state is saved, as a handler's is.
    pub(super) fn submit_saved(self, mut thread: Box<Thread>) -> Flow {
        if has_room(REQUEST_BYTES + self.head.len() as u64).is_err() {
            return finish(thread, Err(Errno::ENOMEM));
        }
        // Only its end interrupts it, as of a disk.
        thread.interruptible_call = None;
        thread.file_call = Some(FileCall {
            then: self.then.map(|then| Box::new(then) as Box<_>),
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
        submit(&self.mount.endpoint, request)
    }
}

/// Returns the result that a reply is.
pub(super) fn result(words: &Words) -> Result<u64, Errno> {
    of_result(words[0])
}

/// Goes on with the call of a thread whose reply has arrived.
pub(crate) fn go_on(mut thread: Box<Thread>) -> Flow {
    let Some(FileCall {
        then: Some(then),
        reply: Some(words),
    }) = thread.file_call.take()
    else {
        return Flow::Continue(thread);
    };
    match then.downcast::<Then>() {
        Ok(then) => (then.0)(thread, words),
        Err(_) => Flow::Continue(thread),
    }
}

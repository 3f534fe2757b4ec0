//! Descriptors: copying, controlling and closing them. Their numbers are the base's.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::files::{NONE, operation};

use crate::model::errno::Errno;
use crate::model::number::{DUP, DUP3, FCNTL};
use crate::syscall::delegate::{delegate, finish};
use crate::syscall::mounted::ask::Ask;
use crate::syscall::mounted::locks::{self, command as lock};
use crate::syscall::mounted::routed::{Arguments, Routed};
use crate::task::flow::Flow;
use crate::task::mounted::{self, Description, OpenFile, Opened};
use crate::task::thread::Thread;

/// `O_CLOEXEC`.
const CLOSE_ON_EXEC: u64 = 0o2_000_000;
/// `FD_CLOEXEC`.
const FD_CLOSE_ON_EXEC: u64 = 1;

/// Commands of fcntl(2).
mod command {
    pub(super) const DUPFD: u64 = 0;
    pub(super) const GETFD: u64 = 1;
    pub(super) const SETFD: u64 = 2;
    pub(super) const GETFL: u64 = 3;
    pub(super) const SETFL: u64 = 4;
    pub(super) const DUPFD_CLOEXEC: u64 = 1030;
}

/// close(2): the base closes the placeholder.
pub(super) fn close(thread: Box<Thread>, _: u64, [fd, ..]: Arguments) -> Routed {
    let closed = mounted::files(&thread.process).and_then(|files| files.lock().remove(fd));
    mounted::release(&thread.process, closed);
    Routed::Base(thread)
}

/// close_range(2).
pub(super) fn close_range(
    thread: Box<Thread>,
    _: u64,
    [first, last, flags, ..]: Arguments,
) -> Routed {
    /// `CLOSE_RANGE_CLOEXEC`.
    const ON_EXEC: u64 = 4;
    let (first, last) = (first as u32, last as u32);
    let Some(files) = mounted::files(&thread.process) else {
        return Routed::Base(thread);
    };
    if first > last {
        return Routed::Base(thread);
    }
    let closed = match flags {
        0 => files.lock().remove_range(first, last),
        ON_EXEC => {
            files.lock().close_range_on_exec(first, last);
            return Routed::Base(thread);
        }
        _ => return Routed::Base(thread),
    };
    mounted::release(&thread.process, closed);
    Routed::Base(thread)
}

fn find(thread: &Thread, fd: u64) -> Option<Opened> {
    let files = mounted::files(&thread.process)?;
    let files = files.lock();
    files.opened(fd).cloned()
}

/// dup(2), dup2(2), dup3(2): also of a descriptor of the base, which may replace a server's.
pub(super) fn duplicate(thread: Box<Thread>, number: u64, arguments: Arguments) -> Routed {
    let [from, to, flags, ..] = arguments;
    let source = find(&thread, from);
    let replaces = number != DUP && find(&thread, to).is_some();
    if source.is_none() && !replaces || number != DUP && from as u32 == to as u32 {
        return Routed::Base(thread);
    }
    let closes_on_exec = number == DUP3 && flags & CLOSE_ON_EXEC != 0;
    Routed::Server(copied(thread, number, arguments, source, closes_on_exec))
}

/// Has the base copy a descriptor, and notes what the copy is.
fn copied(
    thread: Box<Thread>,
    number: u64,
    arguments: Arguments,
    source: Option<Opened>,
    closes_on_exec: bool,
) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = thread.remote_syscall(number, arguments).await;
        if let (Ok(fd), Some(files)) = (result, mounted::files(&thread.process)) {
            let before = match source {
                Some(opened) => files.lock().insert(
                    fd,
                    OpenFile {
                        opened,
                        closes_on_exec,
                    },
                ),
                None => files.lock().remove(fd),
            };
            mounted::release(&thread.process, before);
        }
        finish(thread, result)
    })
}

/// fcntl(2) of what all descriptors have. Others are returned.
pub(in crate::syscall) fn control_any(
    thread: Box<Thread>,
    opened: Opened,
    arguments: Arguments,
) -> Result<Flow, Box<Thread>> {
    let [fd, command, argument, ..] = arguments;
    match u64::from(command as u32) {
        command @ (command::DUPFD | command::DUPFD_CLOEXEC) => {
            let closes_on_exec = command == command::DUPFD_CLOEXEC;
            let source = Some(opened);
            Ok(copied(thread, FCNTL, arguments, source, closes_on_exec))
        }
        command::GETFD => Ok(delegate(thread, FCNTL, arguments)),
        command::SETFD => {
            if let Some(files) = mounted::files(&thread.process)
                && let Some(file) = files.lock().file_mut(fd)
            {
                file.closes_on_exec = argument & FD_CLOSE_ON_EXEC != 0;
            }
            Ok(delegate(thread, FCNTL, arguments))
        }
        _ => Err(thread),
    }
}

/// fcntl(2) of a file.
pub(super) fn control(thread: Box<Thread>, file: Arc<Description>, arguments: Arguments) -> Flow {
    let [_, command, argument, ..] = arguments;
    let opened = Opened::File(Arc::clone(&file));
    let thread = match control_any(thread, opened, arguments) {
        Ok(flow) => return flow,
        Err(thread) => thread,
    };
    match u64::from(command as u32) {
        command::GETFL => Ask::of_file(&file, operation::FLAGS, &[NONE]).submit(thread),
        command::SETFL => Ask::of_file(&file, operation::FLAGS, &[argument])
            .then(|thread, words| {
                let result = crate::syscall::mounted::ask::result(&words);
                finish(thread, result.map(|_| 0))
            })
            .submit(thread),
        lock::GETLK | lock::SETLK | lock::SETLKW => locks::range(thread, file, arguments),
        lock::OFD_GETLK | lock::OFD_SETLK | lock::OFD_SETLKW => {
            locks::range(thread, file, arguments)
        }
        _ => finish(thread, Err(Errno::EINVAL)),
    }
}

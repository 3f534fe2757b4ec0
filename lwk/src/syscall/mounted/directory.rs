//! Directories: listing them, and the current one.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::files::operation;

use crate::model::errno::Errno;
use crate::model::mounts::normalized;
use crate::model::number::UMASK;
use crate::syscall::delegate::{delegate, finish};
use crate::syscall::mounted::ask::{Ask, Words, result};
use crate::syscall::mounted::routed::{Arguments, Routed};
use crate::syscall::mounted::target::Target;
use crate::task::flow::Flow;
use crate::task::mounted::{self, Description};
use crate::task::thread::Thread;

/// Flags of open(2): `O_PATH | O_DIRECTORY`.
const PLACE: u64 = 0o10_000_000 | 0o200_000;

/// getdents64(2).
pub(super) fn list(
    thread: Box<Thread>,
    file: Arc<Description>,
    [_, to, length, ..]: Arguments,
) -> Flow {
    let length = u64::from(length as u32);
    let ask = Ask::of_file(&file, operation::READDIR, &[]);
    ask.writes_at(to, length).submit(thread)
}

/// chdir(2) to a server's directory.
pub(super) fn enter(thread: Box<Thread>, target: Target, _: Arguments) -> Flow {
    let description = Description::new(&target.mount, normalized(&target.full_path()), PLACE);
    let words = [PLACE, 0, description.handle];
    Ask::of_path(&target, operation::OPEN, &words)
        .then(move |thread, words| entered(thread, words, description))
        .submit(thread)
}

fn entered(thread: Box<Thread>, words: Words, description: Arc<Description>) -> Flow {
    let opened = result(&words);
    if opened.is_ok() {
        set(&thread, Some(description));
    }
    finish(thread, opened.map(|_| 0))
}

/// Sets the current directory.
fn set(thread: &Thread, directory: Option<Arc<Description>>) {
    let before = mounted::files(&thread.process)
        .and_then(|files| core::mem::replace(&mut files.lock().directory, directory));
    drop(before);
}

/// chdir(2) to a directory of the base.
pub(super) fn leave(thread: Box<Thread>, number: u64, arguments: Arguments) -> Routed {
    let is_ours =
        mounted::files(&thread.process).is_some_and(|files| files.lock().directory.is_some());
    if !is_ours {
        return Routed::Base(thread);
    }
    Routed::Server(Flow::handler(thread, move |mut thread| async move {
        let result = thread.remote_syscall(number, arguments).await;
        if result.is_ok() {
            set(&thread, None);
        }
        finish(thread, result)
    }))
}

/// fchdir(2).
pub(super) fn change(thread: Box<Thread>, number: u64, arguments: Arguments) -> Routed {
    let file = mounted::files(&thread.process).and_then(|files| {
        let files = files.lock();
        files.file(arguments[0])
    });
    let Some(file) = file else {
        return leave(thread, number, arguments);
    };
    // It may be no directory: the server opens it again.
    let target = Target {
        mount: Arc::clone(&file.mount),
        directory: Some(file),
        path: b".".to_vec(),
    };
    Routed::Server(enter(thread, target, arguments))
}

/// getcwd(2).
pub(super) fn current(thread: Box<Thread>, _: u64, [to, size, ..]: Arguments) -> Routed {
    let path = mounted::files(&thread.process).and_then(|files| {
        let files = files.lock();
        files
            .directory
            .as_ref()
            .map(|directory| directory.path.clone())
    });
    let Some(mut path) = path else {
        return Routed::Base(thread);
    };
    path.push(0);
    let length = path.len() as u64;
    let result = match length <= size {
        true => thread.process.space().write(to, &path).map(|()| length),
        false => Err(Errno::ERANGE),
    };
    Routed::Server(finish(thread, result))
}

/// umask(2): new files of servers do not get these permissions, either.
pub(super) fn umask(thread: Box<Thread>, _: u64, arguments: Arguments) -> Routed {
    if let Some(files) = mounted::files(&thread.process) {
        files.lock().umask = arguments[0] & 0o777;
    }
    Routed::Server(delegate(thread, UMASK, arguments))
}

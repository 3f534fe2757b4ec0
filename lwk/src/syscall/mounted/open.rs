//! Opening files.

use alloc::boxed::Box;
use alloc::sync::Arc;

use insula_abi::files::operation;

use crate::model::errno::Errno;
use crate::model::number::OPENAT;
use crate::syscall::delegate::finish;
use crate::syscall::mounted::ask::{Ask, Words, result};
use crate::syscall::mounted::routed::Arguments;
use crate::syscall::mounted::target::{AT_FDCWD, Target};
use crate::task::flow::Flow;
use crate::task::mounted::{self, Description, OpenFile, Opened};
use crate::task::thread::Thread;

/// Flags of open(2).
const WRITE_ONLY: u64 = 1;
const CREATE: u64 = 0o100;
const TRUNCATE: u64 = 0o1000;
const CLOSE_ON_EXEC: u64 = 0o2_000_000;
/// `O_ACCMODE`: neither reading nor writing.
const NO_ACCESS: u64 = 3;
/// Of new files, all but the type.
const PERMISSIONS: u64 = 0o7777;

/// open(2).
pub(super) fn open(thread: Box<Thread>, target: Target, [_, flags, mode, ..]: Arguments) -> Flow {
    open_file(thread, &target, flags, mode)
}

/// openat(2).
pub(super) fn open_at(
    thread: Box<Thread>,
    target: Target,
    [_, _, flags, mode, ..]: Arguments,
) -> Flow {
    open_file(thread, &target, flags, mode)
}

/// creat(2).
pub(super) fn create(thread: Box<Thread>, target: Target, [_, mode, ..]: Arguments) -> Flow {
    open_file(thread, &target, CREATE | WRITE_ONLY | TRUNCATE, mode)
}

/// openat2(2). Its restrictions of the walk are not known to servers.
pub(super) fn open_as(
    thread: Box<Thread>,
    target: Target,
    [_, _, how, size, ..]: Arguments,
) -> Flow {
    const SIZE: u64 = 24;
    let mut bytes = [0; SIZE as usize];
    let read = thread.process.space().read(how, &mut bytes);
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
    match (size, read, word(16)) {
        (SIZE, Ok(()), 0) => open_file(thread, &target, word(0), word(8)),
        (SIZE, Ok(()), _) => finish(thread, Err(Errno::EAGAIN)),
        (SIZE, Err(error), _) => finish(thread, Err(error)),
        _ => finish(thread, Err(Errno::EINVAL)),
    }
}

/// Asks the server, then has the base open a placeholder, whose number the descriptor gets.
fn open_file(thread: Box<Thread>, target: &Target, flags: u64, mode: u64) -> Flow {
    let flags = u64::from(flags as u32);
    let umask = mounted::files(&thread.process).map_or(0, |files| files.lock().umask);
    let description = Description::new(&target.mount, target.full_path(), flags);
    let words = [flags, mode & PERMISSIONS & !umask, description.handle];
    let closes_on_exec = flags & CLOSE_ON_EXEC != 0;
    Ask::of_path(target, operation::OPEN, &words)
        .then(move |thread, words| opened(thread, words, (description, closes_on_exec)))
        .submit(thread)
}

fn opened(
    thread: Box<Thread>,
    words: Words,
    (file, closes_on_exec): (Arc<Description>, bool),
) -> Flow {
    let [_, mode, inode, shard, ..] = words;
    if let Err(error) = result(&words).and_then(|_| file.set_file(mode, inode, shard)) {
        return finish(thread, Err(error));
    }
    Flow::handler(thread, move |mut thread| async move {
        let fd = open_placeholder(&mut thread, closes_on_exec).await;
        let fd = match fd {
            Ok(fd) => fd,
            Err(error) => return finish(thread, Err(error)),
        };
        let file = OpenFile {
            opened: Opened::File(file),
            closes_on_exec,
        };
        let before =
            mounted::files(&thread.process).and_then(|files| files.lock().insert(fd, file));
        mounted::release(&thread.process, before);
        finish(thread, Ok(fd))
    })
}

/// Has the base open what only stands for a descriptor: it can be neither read nor written, and poll(2)
/// always finds it ready, as a file.
async fn open_placeholder(thread: &mut Thread, closes_on_exec: bool) -> Result<u64, Errno> {
    const PATH: [u64; 2] = [
        u64::from_le_bytes(*b"/dev/nul"),
        u64::from_le_bytes(*b"l\0\0\0\0\0\0\0"),
    ];
    let path = thread.put_scratch(&PATH).ok_or(Errno::ENOMEM)?;
    let flags = match closes_on_exec {
        true => NO_ACCESS | CLOSE_ON_EXEC,
        false => NO_ACCESS,
    };
    thread
        .remote_syscall_as_kernel(OPENAT, [AT_FDCWD, path, flags, 0, 0, 0])
        .await
}

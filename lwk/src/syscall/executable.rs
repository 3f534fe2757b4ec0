//! The link to a program's own file, `/proc/self/exe`. The base's leads there only if the program's proxy has the privilege to
//! change it (`CAP_SYS_RESOURCE`, prctl(2)): else to the first program that the proxy's process has executed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::model::errno::Errno;
use crate::model::number;
use crate::syscall::delegate::{delegate, finish};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// The link.
const LINK: &[u8] = b"/proc/self/exe";

/// readlink(2).
pub(super) fn readlink(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [path, buffer, size, ..] = a;
    match target(&thread, path) {
        Some(target) => read(thread, &target, buffer, size),
        None => delegate(thread, number::READLINK, a),
    }
}

/// readlinkat(2).
pub(super) fn readlinkat(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [_, path, buffer, size, ..] = a;
    match target(&thread, path) {
        Some(target) => read(thread, &target, buffer, size),
        None => delegate(thread, number::READLINKAT, a),
    }
}

/// Where the link at an address leads, if it is this one.
fn target(thread: &Thread, path: u64) -> Option<Vec<u8>> {
    let path = thread.process.space().string(path, LINK.len()).ok()?;
    followed(thread, &path)
}

/// Where a path leads, if it is this link.
pub(super) fn followed(thread: &Thread, path: &[u8]) -> Option<Vec<u8>> {
    (path == LINK)
        .then(|| thread.process.executable())
        .flatten()
}

fn read(thread: Box<Thread>, target: &[u8], buffer: u64, size: u64) -> Flow {
    // As on Linux, it is an int.
    let size = usize::try_from(size as i32).unwrap_or_default();
    if size == 0 {
        return finish(thread, Err(Errno::EINVAL));
    }
    let target = &target[..target.len().min(size)];
    let written = thread.process.space().write(buffer, target);
    finish(thread, written.map(|()| target.len() as u64))
}

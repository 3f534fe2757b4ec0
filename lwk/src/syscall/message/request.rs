//! What sending, receiving and replying have in common: a request in the hands of a thread.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::vec::Vec;

use insula_abi::server::{MESSAGE_COPY_MAX, MESSAGE_FOREVER, Message};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::model::endpoint::Window;
use crate::model::errno::Errno;
use crate::syscall::deadline::deadline_after;
use crate::task::address_space::base_access::{self, MissingPage};
use crate::task::address_space::transfer::TransferError;
use crate::task::endpoint::{self, Handle, ThreadRequest};
use crate::task::flow::Flow;
use crate::task::process::Process;
use crate::task::remote::wait_for_change;
use crate::task::run_queue;
use crate::task::thread::Thread;
use crate::task::transfer::transfer;

/// Copies from what a server may read of a request, from an offset on, to an address of the server's.
/// Returns the number of bytes: no more than are copied without looking at interrupts. Errors of the source are the sender's.
pub(super) fn read_part(
    request: &ThreadRequest,
    (offset, length): (u64, u64),
    (server, to): (&Process, u64),
) -> Result<u64, TransferError> {
    let length = length.min(MESSAGE_COPY_MAX);
    let head = request.head.get(offset as usize..).unwrap_or_default();
    let head = &head[..head.len().min(length as usize)];
    let written = server.space().write(to, head);
    written.map_err(TransferError::Destination)?;
    let mut done = head.len() as u64;
    let skipped = offset.saturating_sub(request.head.len() as u64);
    let Some(sender) = &request.sender else {
        return Ok(done);
    };
    for part in request.readable.parts(skipped, length - done) {
        transfer((&sender.process, part), (server, to.wrapping_add(done)))?;
        done += part.length;
    }
    Ok(done)
}

/// Copies from a server's memory to what it may write of a request, from an offset on. Returns the
/// number of bytes. Errors of the source are the sender's.
pub(super) fn write_part(
    (server, from): (&Process, Window),
    request: &ThreadRequest,
    offset: u64,
) -> Result<u64, TransferError> {
    let mut done = 0;
    let Some(sender) = &request.sender else {
        return Ok(done);
    };
    let length = from.length.min(MESSAGE_COPY_MAX);
    for part in request.writable.parts(offset, length) {
        let source = from.part(done, part.length);
        let copied = transfer((server, source), (&sender.process, part.address));
        copied.map_err(swap)?;
        done += part.length;
    }
    Ok(done)
}

/// For a copy from the server to the client, calls the client's side the source.
fn swap(error: TransferError) -> TransferError {
    match error {
        TransferError::Source(errno) => TransferError::Destination(errno),
        TransferError::Destination(errno) => TransferError::Source(errno),
    }
}

/// Where a request goes once a page of its sender has been faulted in.
pub(super) enum Fault {
    /// It is received again.
    Queued(Handle),
    /// The server works on it again.
    Served(Handle, u64),
}

/// Faults in a page of a base mapping of the sender of a request, and has the server's thread make its
/// call again.
pub(super) fn fault_in(
    thread: Box<Thread>,
    mut request: ThreadRequest,
    page: MissingPage,
    of: Fault,
) -> Flow {
    Flow::handler(thread, move |thread| async move {
        let MissingPage { address, access } = page;
        let faulted = match &mut request.sender {
            Some(sender) => sender.fault_in(address, access).await,
            None => Err(Errno::EFAULT),
        };
        match (faulted, of) {
            (Ok(()), Fault::Queued(handle)) => handle.send_again(request),
            (Ok(()), Fault::Served(handle, number)) => handle.put_back(number, request),
            (Err(error), of) => {
                if let Fault::Served(handle, number) = of {
                    handle.finish(number);
                }
                // Where a program would get SIGBUS, a call fails with EFAULT.
                let error = match error {
                    Errno::EIO => Errno::EFAULT,
                    error => error,
                };
                endpoint::end(request, Err(error));
            }
        }
        Flow::Continue(repeat(thread))
    })
}

/// Has a server's thread make its call again when another thread may have done its work on a request.
pub(super) fn wait_for_other(thread: Box<Thread>) -> Flow {
    Flow::handler(thread, |thread| async move {
        wait_for_change().await;
        Flow::Continue(repeat(thread))
    })
}

/// Returns the page for which an access failed, if it is one of a base mapping.
pub(super) fn missing_page(error: Errno) -> Option<MissingPage> {
    (error == Errno::EBASEPAGE)
        .then(base_access::take_missing)
        .flatten()
}

/// Has a thread make its call again. It keeps its deadline.
pub(super) fn repeat(mut thread: Box<Thread>) -> Box<Thread> {
    thread.repeat_call();
    thread
}

/// Returns the time at which a call's timeout ends, in ns since boot.
pub(super) fn deadline_ns(thread: &mut Thread, timeout_ns: u64) -> Option<u64> {
    (timeout_ns != MESSAGE_FOREVER).then(|| {
        *thread
            .call_deadline_ns
            .get_or_insert_with(|| deadline_after(timeout_ns))
    })
}

/// Reads a structure of a program.
pub(super) fn read_structure<T: FromZeros + FromBytes + IntoBytes + Immutable>(
    process: &Process,
    at: u64,
) -> Result<T, Errno> {
    let mut structure = T::new_zeroed();
    process.space().read(at, structure.as_mut_bytes())?;
    Ok(structure)
}

/// Delivers a request to a server's thread, whose message is at an address: the first bytes of what
/// it may read, then the message. Errors of the source are the sender's.
pub(super) fn deliver(
    request: &ThreadRequest,
    number: u64,
    (server, at): (&Process, u64),
) -> Result<(), TransferError> {
    let wanted: Message = read_structure(server, at).map_err(TransferError::Destination)?;
    let room = (0, wanted.writable_length);
    read_part(request, room, (server, wanted.writable_address))?;
    let pid = |sender: &Thread| sender.process.pages().pid() as u32;
    let message = Message {
        request: number,
        operation: request.operation,
        sender: request.sender.as_deref().map_or(0, pid),
        words: request.words,
        readable_address: 0,
        readable_length: request.readable_length(),
        writable_address: 0,
        writable_length: request.writable.length(),
    };
    let written = server.space().write(at, message.as_bytes());
    written.map_err(TransferError::Destination)
}

/// Has senders go on that have got their replies.
pub(super) fn resume_all(threads: Vec<Box<Thread>>) {
    threads.into_iter().for_each(run_queue::enqueue);
}

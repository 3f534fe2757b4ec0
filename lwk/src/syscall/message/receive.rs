//! Replying to requests, and receiving the next ones.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::vec::Vec;

use insula_abi::server::{
    MESSAGE_BATCH_MAX, MESSAGE_COPY_MAX, Message, Reply, SYS_MESSAGE_RECEIVE,
};
use zerocopy::IntoBytes;

use crate::hw::cores;
use crate::hw::memory::room::reserve_in;
use crate::model::endpoint::{NotTaken, Window};
use crate::model::errno::Errno;
use crate::syscall::delegate::finish;
use crate::syscall::message::request::{
    Fault, deadline_ns, deliver, fault_in, missing_page, read_structure, repeat, resume_all,
    wait_for_other, write_part,
};
use crate::task::address_space::base_access::MissingPage;
use crate::task::address_space::transfer::TransferError;
use crate::task::announcement;
use crate::task::endpoint::{self, Handle, ThreadReceiver, ThreadRequest};
use crate::task::endpoint_registry;
use crate::task::flow::Flow;
use crate::task::process::Process;
use crate::task::socket;
use crate::task::thread::Thread;

/// Why a call does not go on.
enum Stop {
    /// It fails.
    Error(Errno),
    /// A page of a request's sender has to be faulted in, then the call is made again.
    Fault(ThreadRequest, MissingPage, Fault),
    /// Another thread works on one of the requests.
    Busy,
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

/// The arguments of the call.
#[derive(Clone, Copy)]
struct Arguments {
    messages: u64,
    count: u64,
    replies: u64,
    reply_count: u64,
    timeout_ns: u64,
}

/// Replies to requests, then receives others; waits if there is none.
pub(in crate::syscall) fn receive(
    thread: Box<Thread>,
    [handle, messages, count, replies, reply_count, timeout_ns]: [u64; 6],
) -> Flow {
    let arguments = Arguments {
        messages,
        count,
        replies,
        reply_count,
        timeout_ns,
    };
    let handle = match find(&thread, handle, arguments) {
        Ok(handle) => handle,
        Err(error) => return finish(thread, Err(error)),
    };
    let mut ready = Vec::new();
    let received = reply_all(&thread.process, &handle, arguments, &mut ready)
        .and_then(|()| receive_all(&thread, &handle, arguments));
    match received {
        Ok(0) if count > 0 => wait(thread, &handle, arguments, ready),
        received => {
            resume_all(ready);
            match received {
                Ok(received) => finish(thread, Ok(received)),
                Err(Stop::Error(error)) => finish(thread, Err(error)),
                Err(Stop::Fault(request, page, of)) => fault_in(thread, request, page, of),
                Err(Stop::Busy) => wait_for_other(thread),
            }
        }
    }
}

fn find(thread: &Thread, handle: u64, arguments: Arguments) -> Result<Handle, Errno> {
    let most = arguments.count.max(arguments.reply_count);
    match most > MESSAGE_BATCH_MAX as u64 {
        true => Err(Errno::EMSGSIZE),
        false => endpoint_registry::find(&thread.process, handle, true),
    }
}

/// Makes all replies. `ready` gets the senders.
fn reply_all(
    server: &Process,
    handle: &Handle,
    arguments: Arguments,
    ready: &mut Vec<Box<Thread>>,
) -> Result<(), Stop> {
    reserve_in(ready, arguments.reply_count as usize).map_err(Errno::from)?;
    for index in 0..arguments.reply_count {
        let at = index.wrapping_mul(size_of::<Reply>() as u64);
        let reply: Reply = read_structure(server, arguments.replies.wrapping_add(at))?;
        if reply.request == 0 {
            announcement::take(server, handle, reply.words);
            continue;
        }
        match handle.take(reply.request) {
            Ok(request) => ready.extend(reply_to(server, handle, request, &reply)?),
            Err(NotTaken::Gone) => {}
            Err(NotTaken::Busy) => return Err(Stop::Busy),
        }
    }
    Ok(())
}

/// Replies to a request that was taken out. Returns its sender, unless that has got an error.
fn reply_to(
    server: &Process,
    handle: &Handle,
    request: ThreadRequest,
    reply: &Reply,
) -> Result<Option<Box<Thread>>, Stop> {
    let number = reply.request;
    match write_reply(server, &request, reply) {
        Ok(()) => {
            handle.finish(number);
            Ok(request.sender.map(|sender| complete(sender, reply)))
        }
        Err(TransferError::Source(error)) => match missing_page(error) {
            Some(page) => {
                let of = Fault::Served(handle.clone(), number);
                Err(Stop::Fault(request, page, of))
            }
            None => {
                handle.finish(number);
                endpoint::end(request, Err(error));
                Ok(None)
            }
        },
        Err(TransferError::Destination(error)) => {
            handle.put_back(number, request);
            Err(Stop::Error(error))
        }
    }
}

/// Gives the sender of a request that has its reply the result of its call.
fn complete(mut sender: Box<Thread>, reply: &Reply) -> Box<Thread> {
    sender.context.registers.rax = 0;
    if let Some(mut call) = sender.file_call.take() {
        sender.context.registers.rax = reply.words[0];
        if let Some(handle) = call.socket {
            socket::note_reply(handle, reply.words[1]);
        }
        if let Some(request) = call.offset.take() {
            request.end(reply.words[1]);
        }
        if call.then.is_some() {
            call.reply = Some(reply.words);
            sender.file_call = Some(call);
        }
    }
    sender
}

/// Writes a reply into its sender's memory. Errors of the source are the sender's.
fn write_reply(
    server: &Process,
    request: &ThreadRequest,
    reply: &Reply,
) -> Result<(), TransferError> {
    if reply.data_length > MESSAGE_COPY_MAX {
        return Err(TransferError::Destination(Errno::EMSGSIZE));
    }
    let data = Window {
        address: reply.data_address,
        length: reply.data_length,
    };
    write_part((server, data), request, 0)?;
    let client = match &request.sender {
        Some(client) if request.message != 0 => client,
        _ => return Ok(()),
    };
    let message = Message {
        operation: request.operation,
        words: reply.words,
        readable_address: request.readable.first.address,
        readable_length: request.readable.first.length,
        writable_address: request.writable.first.address,
        writable_length: request.writable.first.length,
        ..Message::default()
    };
    let mut space = client.process.space();
    let written = space.write(request.message, message.as_bytes());
    written.map_err(TransferError::Source)
}

/// Receives what is there. Returns the number of requests.
fn receive_all(thread: &Thread, handle: &Handle, arguments: Arguments) -> Result<u64, Stop> {
    let server = &thread.process;
    let mut received = 0;
    while received < arguments.count
        && let Some((number, request)) = handle.receive()
    {
        let offset = received.wrapping_mul(size_of::<Message>() as u64);
        let at = arguments.messages.wrapping_add(offset);
        match deliver(&request, number, (server, at)) {
            Ok(()) => {
                match request.is_interrupt() {
                    true => handle.count_interrupt(),
                    false => {
                        thread.handle.serves.receive_from(handle.id());
                        handle.serve(number, request, (handle.generation, cores::number()));
                    }
                }
                received += 1;
            }
            Err(TransferError::Source(error)) => match missing_page(error) {
                Some(page) if received == 0 => {
                    let of = Fault::Queued(handle.clone());
                    return Err(Stop::Fault(request, page, of));
                }
                // What has been received is the server's: it gets that first.
                Some(_) => {
                    handle.send_again(request);
                    break;
                }
                None => endpoint::end(request, Err(error)),
            },
            Err(TransferError::Destination(error)) => {
                handle.send_again(request);
                match received {
                    0 => return Err(Stop::Error(error)),
                    _ => break,
                }
            }
        }
    }
    Ok(received)
}

/// Has a thread wait for a request.
fn wait(
    mut thread: Box<Thread>,
    handle: &Handle,
    arguments: Arguments,
    ready: Vec<Box<Thread>>,
) -> Flow {
    let deadline_ns = deadline_ns(&mut thread, arguments.timeout_ns);
    thread.interruptible_call = Some(SYS_MESSAGE_RECEIVE);
    thread.extended.save();
    let receiver = ThreadReceiver {
        receiver: thread,
        generation: handle.generation,
        messages: arguments.messages,
        deadline_ns,
    };
    match handle.wait(receiver) {
        Ok(()) => switch(ready),
        Err((error, thread)) => {
            resume_all(ready);
            match error {
                Errno::EAGAIN => Flow::Continue(repeat(thread)),
                error => finish(thread, Err(error)),
            }
        }
    }
}

/// Has senders go on whose server waits now: one of this core at once, in the server's turn.
fn switch(mut ready: Vec<Box<Thread>>) -> Flow {
    let own = cores::number();
    let next = ready.iter().position(|thread| thread.core == own);
    let next = next.map(|at| ready.remove(at));
    resume_all(ready);
    match next {
        Some(thread) => Flow::Switch(thread),
        None => Flow::Blocked,
    }
}

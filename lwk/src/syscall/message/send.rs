//! Sending a request.

use alloc::boxed::Box;
use alloc::vec::Vec;

use insula_abi::server::{Message, SYS_MESSAGE_SEND};

use crate::hw::cores;
use crate::hw::memory::room::has_room;
use crate::model::endpoint::{Request, Window, Windows};
use crate::model::errno::Errno;
use crate::syscall::delegate::finish;
use crate::syscall::message::request::{deadline_ns, deliver, read_structure, repeat};
use crate::task::address_space::transfer::TransferError;
use crate::task::endpoint::{Handle, Sent, ThreadReceiver, ThreadRequest};
use crate::task::endpoint_registry;
use crate::task::flow::Flow;
use crate::task::run_queue;
use crate::task::thread::Thread;

/// Kernel memory needed for a request.
const REQUEST_BYTES: u64 = 4096;

/// Sends a request, and waits for the reply.
pub(in crate::syscall) fn send(
    mut thread: Box<Thread>,
    [handle, message, timeout_ns, ..]: [u64; 6],
) -> Flow {
    let found = endpoint_registry::find(&thread.process, handle, false)
        .and_then(|handle| Ok((handle, read_message(&thread, message)?)))
        .and_then(|found| Ok(has_room(REQUEST_BYTES).map(|()| found)?));
    let (handle, content) = match found {
        Ok(found) => found,
        Err(error) => return finish(thread, Err(error)),
    };
    let deadline_ns = deadline_ns(&mut thread, timeout_ns);
    thread.interruptible_call = Some(SYS_MESSAGE_SEND);
    thread.extended.save();
    submit(&handle, request(thread, (message, content), deadline_ns))
}

/// Sends a request whose sender's extended state is saved.
pub(in crate::syscall) fn submit(handle: &Handle, request: ThreadRequest) -> Flow {
    match handle.send(request) {
        Sent::Queued => Flow::Blocked,
        Sent::To(receiver, request) => give(handle, request, receiver),
    }
}

/// Reads the message of a request, which the reply will replace.
fn read_message(thread: &Thread, at: u64) -> Result<Message, Errno> {
    let message = read_structure(&thread.process, at)?;
    let end = at.wrapping_add(size_of::<Message>() as u64);
    thread.process.space().can_write(at, end)?;
    Ok(message)
}

fn request(
    sender: Box<Thread>,
    (message, content): (u64, Message),
    deadline_ns: Option<u64>,
) -> ThreadRequest {
    Box::new(Request {
        rank: sender.handle.priority().realtime(),
        sender: Some(sender),
        message,
        operation: content.operation,
        words: content.words,
        head: Vec::new(),
        readable: Windows::from(Window {
            address: content.readable_address,
            length: content.readable_length,
        }),
        writable: Windows::from(Window {
            address: content.writable_address,
            length: content.writable_length,
        }),
        deadline_ns,
    })
}

/// Gives a request to a waiting server. If both are on this core, the server runs at once, in the
/// sender's turn.
fn give(handle: &Handle, request: ThreadRequest, receiver: ThreadReceiver) -> Flow {
    let ThreadReceiver {
        mut receiver,
        messages,
        generation,
        ..
    } = receiver;
    let number = handle.new_number();
    match deliver(&request, number, (&receiver.process, messages)) {
        Ok(()) => {}
        Err(TransferError::Source(error)) => {
            // It may have missed other requests meanwhile.
            run_queue::enqueue(repeat(receiver));
            let Some(mut sender) = request.sender else {
                return Flow::Blocked;
            };
            sender.file_call = None;
            return finish(sender, Err(error));
        }
        Err(TransferError::Destination(_)) => {
            // Its own call faults in the page, or fails.
            handle.send_again(request);
            run_queue::enqueue(repeat(receiver));
            return Flow::Blocked;
        }
    }
    receiver.handle.serves.receive_from(handle.id());
    handle.serve(number, request, (generation, receiver.core));
    receiver.context.registers.rax = 1;
    match receiver.core == cores::number() {
        true => Flow::Switch(receiver),
        false => {
            run_queue::enqueue(receiver);
            Flow::Blocked
        }
    }
}

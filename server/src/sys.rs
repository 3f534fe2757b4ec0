//! The system calls, by number.

#![allow(unsafe_code, reason = "system calls are made by number")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use insula_abi::pci::PCI_INTERRUPTED;
use insula_abi::server::{
    ENDPOINT_CORES_WORDS, EndpointInfo, MESSAGE_FOREVER, Message, Reply, SYS_ENDPOINT_CLOSE,
    SYS_ENDPOINT_CREATE, SYS_ENDPOINT_LIST, SYS_ENDPOINT_OPEN, SYS_ENDPOINT_PLACE,
    SYS_MESSAGE_READ, SYS_MESSAGE_RECEIVE, SYS_MESSAGE_SEND, SYS_MESSAGE_WRITE,
};
use nix::errno::Errno;
use nix::libc;

use crate::Announcement;

/// A handle of an endpoint, closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Handle {
    number: u64,
    is_closed: AtomicBool,
}

impl Handle {
    fn new(number: u64) -> Self {
        Self {
            number,
            is_closed: AtomicBool::new(false),
        }
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Closes it, once: its number may be another's then.
    pub(crate) fn close(&self) {
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            // SAFETY: it touches no memory.
            let _ = unsafe { call(SYS_ENDPOINT_CLOSE, [self.number, 0, 0, 0, 0, 0]) };
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// # Safety
/// What the call does with this process's memory must be allowed.
unsafe fn call(number: u64, [a, b, c, d, e, f]: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: by the caller.
    let result = unsafe { libc::syscall(number.cast_signed(), a, b, c, d, e, f) };
    Errno::result(result).map(i64::cast_unsigned)
}

/// Returns a timeout as the kernel counts it.
fn timeout_ns(timeout: Option<Duration>) -> u64 {
    timeout.map_or(MESSAGE_FOREVER, |timeout| {
        u64::try_from(timeout.as_nanos())
            .unwrap_or(MESSAGE_FOREVER)
            .min(MESSAGE_FOREVER - 1)
    })
}

fn named(number: u64, name: &str) -> Result<Handle, Errno> {
    let arguments = [name.as_ptr() as u64, name.len() as u64, 0, 0, 0, 0];
    // SAFETY: it reads the name.
    unsafe { call(number, arguments) }.map(Handle::new)
}

pub(crate) fn create(name: &str) -> Result<Handle, Errno> {
    named(SYS_ENDPOINT_CREATE, name)
}

pub(crate) fn open(name: &str) -> Result<Handle, Errno> {
    named(SYS_ENDPOINT_OPEN, name)
}

/// Lists the first endpoints. Returns how many there are.
pub(crate) fn list(to: &mut [EndpointInfo]) -> Result<usize, Errno> {
    let arguments = [to.as_mut_ptr() as u64, to.len() as u64, 0, 0, 0, 0];
    // SAFETY: it writes at most as many entries, of which any content is valid.
    let all = unsafe { call(SYS_ENDPOINT_LIST, arguments) };
    all.map(|all| all as usize)
}

/// Puts a server on other cores.
pub(crate) fn place(name: &str, cores: &[u64; ENDPOINT_CORES_WORDS]) -> Result<(), Errno> {
    let set = (cores.as_ptr() as u64, size_of_val(cores) as u64);
    let arguments = [name.as_ptr() as u64, name.len() as u64, set.0, set.1, 0, 0];
    // SAFETY: it reads name and cores.
    unsafe { call(SYS_ENDPOINT_PLACE, arguments) }.map(drop)
}

/// Sends a request and waits for the reply, which replaces the message's words.
pub(crate) fn send(
    handle: &Handle,
    message: &mut Message,
    (readable, writable): (&[u8], &mut [u8]),
    timeout: Option<Duration>,
) -> Result<(), Errno> {
    message.readable_address = readable.as_ptr() as u64;
    message.readable_length = readable.len() as u64;
    message.writable_address = writable.as_mut_ptr() as u64;
    message.writable_length = writable.len() as u64;
    let at = &raw mut *message as u64;
    let arguments = [handle.number, at, timeout_ns(timeout), 0, 0, 0];
    // SAFETY: 1. the message is borrowed exclusively. 2. A server reads `readable` and writes
    // `writable`, borrowed as that, until the call returns.
    unsafe { call(SYS_MESSAGE_SEND, arguments) }.map(drop)
}

/// A place for a received request, and for the first bytes of what may be read.
#[derive(Debug)]
pub(crate) struct Place<const FIRST: usize> {
    pub(crate) message: Message,
    pub(crate) first: [u8; FIRST],
}

impl<const FIRST: usize> Place<FIRST> {
    pub(crate) fn new() -> Self {
        Self {
            message: Message::default(),
            first: [0; FIRST],
        }
    }

    /// Whether it is an interrupt, to which nothing is replied.
    pub(crate) fn is_interrupt(&self) -> bool {
        (self.message.sender, self.message.operation) == (0, PCI_INTERRUPTED)
    }
}

/// Returns an announcement as the kernel has it: a reply to no request.
fn unasked(announcement: &Announcement) -> Reply {
    Reply {
        request: 0,
        words: announcement.0,
        data_address: 0,
        data_length: 0,
    }
}

/// Makes a reply and its announcements, if there is one; then receives a request, if there is a place for one.
pub(crate) fn receive<const FIRST: usize>(
    handle: &Handle,
    place: Option<&mut Place<FIRST>>,
    reply: Option<(u64, &crate::Reply<'_>)>,
    timeout: Option<Duration>,
) -> Result<(), Errno> {
    let announced = reply.map_or(&[][..], |(_, reply)| reply.announcements);
    let reply = reply.map(|(request, reply)| Reply {
        request,
        words: reply.words,
        data_address: reply.data.as_ptr() as u64,
        data_length: reply.data.len() as u64,
    });
    let with_announced: Vec<Reply>;
    let replies = match announced {
        [] => reply.as_slice(),
        announced => {
            with_announced = announced.iter().map(unasked).chain(reply).collect();
            &with_announced
        }
    };
    let (messages, count) = place.map_or((0, 0), |place| {
        place.message.writable_address = place.first.as_mut_ptr() as u64;
        place.message.writable_length = FIRST as u64;
        (&raw mut place.message as u64, 1)
    });
    let arguments = [
        handle.number,
        messages,
        count,
        replies.as_ptr() as u64,
        replies.len() as u64,
        timeout_ns(timeout),
    ];
    // SAFETY: 1. the replies and their data are borrowed. 2. Message and first bytes are written, and
    // borrowed exclusively.
    unsafe { call(SYS_MESSAGE_RECEIVE, arguments) }.map(drop)
}

/// Announces something to the kernel, by replies to no request.
pub(crate) fn announce(handle: &Handle, all: &[Announcement]) -> Result<(), Errno> {
    let replies: Vec<_> = all.iter().map(unasked).collect();
    let (start, count) = (replies.as_ptr() as u64, replies.len() as u64);
    let arguments = [handle.number, 0, 0, start, count, 0];
    // SAFETY: the replies are borrowed, and have no data.
    unsafe { call(SYS_MESSAGE_RECEIVE, arguments) }.map(drop)
}

/// Copies from what the client of a request lets be read. Returns the number of bytes.
pub(crate) fn read(
    handle: &Handle,
    request: u64,
    offset: u64,
    to: &mut [u8],
) -> Result<usize, Errno> {
    let (at, length) = (to.as_mut_ptr() as u64, to.len() as u64);
    // SAFETY: it writes to `to`, at most its length.
    let done = unsafe {
        call(
            SYS_MESSAGE_READ,
            [handle.number, request, offset, at, length, 0],
        )
    };
    done.map(|done| done as usize)
}

/// Copies to what the client of a request lets be written. Returns the number of bytes.
pub(crate) fn write(
    handle: &Handle,
    request: u64,
    offset: u64,
    from: &[u8],
) -> Result<usize, Errno> {
    let (at, length) = (from.as_ptr() as u64, from.len() as u64);
    // SAFETY: it reads `from`, at most its length.
    let done = unsafe {
        call(
            SYS_MESSAGE_WRITE,
            [handle.number, request, offset, at, length, 0],
        )
    };
    done.map(|done| done as usize)
}

//! Requests within a process, for tests of handlers.

use std::cell::RefCell;

use crate::{Access, Call, Error, Handler, Request, Words};

/// Bytes of what may be read that come with a request, as few as possible: a handler that relies on
/// more shall fail its tests.
const FIRST: usize = 0;

/// Has a handler handle a call of this process. Returns the words of its reply.
pub fn call(handler: &mut impl Handler, call: Call<'_>) -> Words {
    handle(handler, (std::process::id(), FIRST), call)
}

/// The same, with the first bytes of what may be read.
pub fn call_with_first(handler: &mut impl Handler, call: Call<'_>, first: usize) -> Words {
    handle(handler, (std::process::id(), first), call)
}

/// The same of the process with that id.
pub fn call_as(handler: &mut impl Handler, sender: u32, call: Call<'_>) -> Words {
    handle(handler, (sender, FIRST), call)
}

fn handle(handler: &mut impl Handler, (sender, first): (u32, usize), call: Call<'_>) -> Words {
    let access = Own {
        readable: call.readable,
        writable: RefCell::new(call.writable),
    };
    let writable = access.writable.borrow().len() as u64;
    let reply = handler.handle(&Request {
        operation: call.operation,
        sender,
        words: call.words,
        first: &call.readable[..first.min(call.readable.len())],
        readable: call.readable.len() as u64,
        writable,
        access: &access,
    });
    let mut writable = access.writable.borrow_mut();
    let length = reply.data.len().min(writable.len());
    writable[..length].copy_from_slice(&reply.data[..length]);
    reply.words
}

struct Own<'a> {
    readable: &'a [u8],
    writable: RefCell<&'a mut [u8]>,
}

/// Returns the part of `length` bytes at an offset, as far as it is there.
fn part(length: usize, whole: usize, offset: u64) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).unwrap_or(whole).min(whole);
    start..start + length.min(whole - start)
}

impl Access for Own<'_> {
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize, Error> {
        let from = &self.readable[part(to.len(), self.readable.len(), offset)];
        to[..from.len()].copy_from_slice(from);
        Ok(from.len())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<usize, Error> {
        let mut writable = self.writable.borrow_mut();
        let range = part(from.len(), writable.len(), offset);
        let length = range.len();
        writable[range].copy_from_slice(&from[..length]);
        Ok(length)
    }
}

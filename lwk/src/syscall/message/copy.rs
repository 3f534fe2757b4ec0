//! A server's access to the memory that a request names.

use alloc::boxed::Box;

use crate::model::endpoint::{NotTaken, Window};
use crate::model::errno::Errno;
use crate::syscall::delegate::finish;
use crate::syscall::message::request::{
    Fault, fault_in, missing_page, read_part, wait_for_other, write_part,
};
use crate::task::address_space::transfer::TransferError;
use crate::task::endpoint::ThreadRequest;
use crate::task::endpoint_registry;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Copies from what the sender of a request lets its server read.
pub(in crate::syscall) fn read(
    thread: Box<Thread>,
    [handle, number, offset, address, length, _]: [u64; 6],
) -> Flow {
    work_on(thread, handle, number, |thread, request| {
        read_part(request, (offset, length), (&thread.process, address))
    })
}

/// Copies to what the sender of a request lets its server write.
pub(in crate::syscall) fn write(
    thread: Box<Thread>,
    [handle, number, offset, address, length, _]: [u64; 6],
) -> Flow {
    work_on(thread, handle, number, |thread, request| {
        write_part(
            (&thread.process, Window { address, length }),
            request,
            offset,
        )
    })
}

/// Has a server work on a request that it has. Errors of the source are the sender's.
fn work_on(
    thread: Box<Thread>,
    handle: u64,
    number: u64,
    work: impl FnOnce(&Thread, &ThreadRequest) -> Result<u64, TransferError>,
) -> Flow {
    let handle = match endpoint_registry::find(&thread.process, handle, true) {
        Ok(handle) => handle,
        Err(error) => return finish(thread, Err(error)),
    };
    let request = match handle.take(number) {
        Ok(request) => request,
        Err(NotTaken::Gone) => return finish(thread, Err(Errno::ESRCH)),
        Err(NotTaken::Busy) => return wait_for_other(thread),
    };
    let result = match work(&thread, &request) {
        Err(TransferError::Source(error)) => match missing_page(error) {
            Some(page) => return fault_in(thread, request, page, Fault::Served(handle, number)),
            None => Err(error),
        },
        Err(TransferError::Destination(error)) => Err(error),
        Ok(done) => Ok(done),
    };
    handle.put_back(number, request);
    finish(thread, result)
}

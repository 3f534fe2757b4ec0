//! Endpoints, and the handles of a process.

use insula_abi::server::ENDPOINT_NAME_MAX;

use crate::model::errno::Errno;
use crate::task::announcement;
use crate::task::endpoint_registry::{self, Name};
use crate::task::process::Process;
use crate::task::thread::Thread;

/// Creates an endpoint.
pub(in crate::syscall) fn create(
    thread: &mut Thread,
    [name, length, flags, ..]: [u64; 6],
) -> Result<u64, Errno> {
    let name = read_name(&thread.process, (name, length), flags)?;
    endpoint_registry::create(&thread.process, name).map(u64::from)
}

/// Opens an endpoint.
pub(in crate::syscall) fn open(
    thread: &mut Thread,
    [name, length, flags, ..]: [u64; 6],
) -> Result<u64, Errno> {
    let name = read_name(&thread.process, (name, length), flags)?;
    endpoint_registry::open(&thread.process, &name).map(u64::from)
}

/// Closes a handle.
pub(in crate::syscall) fn close(thread: &mut Thread, [handle, ..]: [u64; 6]) -> Result<u64, Errno> {
    let closed = endpoint_registry::close(&thread.process, handle)?;
    closed.into_iter().for_each(announcement::end_all);
    Ok(0)
}

/// Reads the name of an endpoint.
pub(super) fn read_name(
    process: &Process,
    (at, length): (u64, u64),
    flags: u64,
) -> Result<Name, Errno> {
    if flags != 0 || !(1..=ENDPOINT_NAME_MAX as u64).contains(&length) {
        return Err(Errno::EINVAL);
    }
    let mut name = [0; ENDPOINT_NAME_MAX];
    let name = &mut name[..length as usize];
    process.space().read(at, name)?;
    match name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        true => Err(Errno::EINVAL),
        false => Ok(name.to_vec()),
    }
}

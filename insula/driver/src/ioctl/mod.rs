//! The ioctls of `/dev/insula`, one safe function each.
//!
//! Here Rust's slices become the addresses and lengths of the ABI; each is borrowed for the length
//! of the call, and the module keeps none of them.

#![allow(
    unsafe_code,
    reason = "ioctl is a foreign function that takes addresses"
)]

mod channel;
mod delegation;
mod image;
mod memory;
mod node;

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use insula_abi as abi;
use insula_abi::ioctl;
use nix::errno::Errno;
use nix::libc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::CallError;
pub(super) use channel::*;
pub(super) use delegation::*;
pub(super) use image::*;
pub(super) use memory::*;
pub(super) use node::*;

type CallResult<T> = Result<T, CallError>;

/// An ioctl, and its name for messages.
#[derive(Clone, Copy)]
struct Call(u32, &'static str);

impl Call {
    /// Performs the call and returns its non-negative result.
    ///
    /// # Safety
    /// `T` is the structure that the request number stands for, and every address and length in
    /// `argument` names memory that the call may read or write as the ABI says.
    unsafe fn perform<T: FromBytes + IntoBytes>(
        self,
        fd: BorrowedFd<'_>,
        argument: &mut T,
    ) -> CallResult<libc::c_int> {
        let address = std::ptr::from_mut(argument);
        // SAFETY: 1. `fd` is open for the length of the call, being borrowed. 2. `address` is valid
        // for reads and writes of the size encoded in the request (the caller's promise). 3. What
        // the module writes there is a valid `T`, since any bytes are (`FromBytes`).
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), self.0 as libc::Ioctl, address) };
        Errno::result(result).map_err(|errno| CallError {
            call: self.1,
            errno,
        })
    }

    /// Performs a call without an argument.
    fn bare(self, fd: BorrowedFd<'_>) -> CallResult<libc::c_int> {
        // SAFETY: the `_IO` requests carry no structure, the module reads and writes nothing.
        unsafe { self.perform(fd, &mut 0_u64) }
    }

    /// Performs a call that returns a new descriptor.
    ///
    /// # Safety
    /// As [`Call::perform`].
    unsafe fn descriptor<T: FromBytes + IntoBytes>(
        self,
        fd: BorrowedFd<'_>,
        argument: &mut T,
    ) -> CallResult<OwnedFd> {
        // SAFETY: passed on to the caller.
        let raw = unsafe { self.perform(fd, argument) }?;
        // SAFETY: the module has just made this descriptor for us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }
}

/// Calls for the number of items and then for the items, until all fit.
fn fill<T: FromZeros + Clone>(
    mut list: impl FnMut(&mut [T]) -> CallResult<u32>,
) -> CallResult<Vec<T>> {
    let mut items = Vec::new();
    loop {
        let count = list(&mut items)? as usize;
        if count <= items.len() {
            items.truncate(count);
            return Ok(items);
        }
        items = vec![T::new_zeroed(); count];
    }
}

fn address<T>(slice: &mut [T]) -> u64 {
    slice.as_mut_ptr() as u64
}

fn capacity<T>(slice: &[T]) -> u32 {
    u32::try_from(slice.len()).unwrap_or(u32::MAX)
}

pub(super) fn hello(fd: BorrowedFd<'_>, hello: &mut abi::Hello) -> CallResult<()> {
    // SAFETY: `Hello` is this request's structure and holds no address.
    unsafe { Call(ioctl::HELLO, "INSULA_HELLO").perform(fd, hello) }.map(drop)
}

pub(super) fn machine(fd: BorrowedFd<'_>) -> CallResult<(abi::Machine, Vec<abi::Cpu>)> {
    let mut machine = abi::Machine::default();
    let cpus = fill(|cpus: &mut [abi::Cpu]| {
        machine = abi::Machine {
            cpus: address(cpus),
            cpus_capacity: capacity(cpus),
            ..Default::default()
        };
        // SAFETY: `Machine` is this request's structure; it names `cpus` and its length.
        unsafe { Call(ioctl::MACHINE, "INSULA_MACHINE").perform(fd, &mut machine) }?;
        Ok(machine.cpus_count)
    })?;
    Ok((machine, cpus))
}

pub(super) fn pool_reserve(
    fd: BorrowedFd<'_>,
    cpus: &[u32],
    memory: abi::Request,
) -> CallResult<()> {
    let mut pool = abi::Pool {
        cpus: cpus.as_ptr() as u64,
        cpus_count: capacity(cpus),
        reserved: 0,
        memory,
    };
    // SAFETY: `Pool` is this request's structure; it names `cpus`, which is only read.
    unsafe { Call(ioctl::POOL_RESERVE, "INSULA_POOL_RESERVE").perform(fd, &mut pool) }.map(drop)
}

pub(super) fn pool_release(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::POOL_RELEASE, "INSULA_POOL_RELEASE")
        .bare(fd)
        .map(drop)
}

pub(super) fn node_list(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Name>> {
    names(fd, Call(ioctl::NODE_LIST, "INSULA_NODE_LIST"))
}

fn names(fd: BorrowedFd<'_>, call: Call) -> CallResult<Vec<abi::Name>> {
    fill(|names: &mut [abi::Name]| {
        let mut list = abi::Names {
            names: address(names),
            capacity: capacity(names),
            count: 0,
        };
        // SAFETY: `Names` is the structure of both lists' requests; it names `names` and its
        // length.
        unsafe { call.perform(fd, &mut list) }?;
        Ok(list.count)
    })
}

pub(super) fn description(fd: BorrowedFd<'_>) -> CallResult<Vec<u8>> {
    fill(|bytes: &mut [u8]| {
        let mut description = abi::Description {
            bytes: address(bytes),
            capacity: capacity(bytes),
            size: 0,
        };
        let call = Call(ioctl::DESCRIPTION, "INSULA_DESCRIPTION");
        // SAFETY: `Description` is this request's structure; it names `bytes` and its size.
        unsafe { call.perform(fd, &mut description) }?;
        Ok(description.size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_repeats_until_all_items_fit() {
        let mut sizes = [3_u32, 5, 4].into_iter();
        let items = fill(|items: &mut [u32]| {
            items.fill(7);
            Ok(sizes.next().unwrap())
        })
        .unwrap();
        assert_eq!(items, [7; 4]);
    }

    #[test]
    fn a_descriptor_of_another_device_is_an_error() {
        use std::os::fd::AsFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = memory_create(file.as_fd()).unwrap_err();
        assert_eq!(error.errno, Errno::ENOTTY);
        assert!(
            error.to_string().starts_with("allocating memory: "),
            "{error}"
        );
    }
}

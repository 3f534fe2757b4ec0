//! The mirror of a program's address space on a node of the lightweight kernel, and this process
//! becoming the program's proxy.

#![allow(
    unsafe_code,
    reason = "the process replaces its address space with the proxy's"
)]

mod c_library;
mod data;
mod other;
mod region;
mod signals;

use std::arch::asm;
use std::convert::Infallible;
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use insula_abi::lwk::MIRROR_SLOTS;
use insula_base::error::Error;
use insula_proxy::{BLOB_SIZE, STACK_SIZE, blob};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mprotect};
use nix::sys::resource::{Resource, getrlimit};

use data::{Data, Source};
use region::SLOTS_SIZE;
use signals::Inherited;

pub use other::OtherProxy;
pub use region::{ProxyRegion, RegionLayout};

/// What fails without address space for the proxy.
const MEMORY: &str = "memory for the proxy";
/// What fails when the mirror's descriptor cannot be moved out of the program's way.
const DESCRIPTOR: &str = "the proxy's descriptor";

/// An error of this process, which did not become a proxy: it is unchanged.
fn failed(what: impl Into<String>) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::new(what).because(io::Error::from(errno))
}

/// Parameters of a proxy.
#[derive(Debug)]
pub struct ProxyStart<'a> {
    /// The block that the program's kernel gets when it asks for arguments.
    pub arguments: &'a [u8],
    /// The program's file, as which the process is shown (`/proc/PID/exe`), if that can be set.
    pub executable: Option<OwnedFd>,
    /// Polls of a slot's sequence number before sleeping.
    pub polls: u64,
}

/// The mirror of a program's address space, whose proxy this process will be.
#[derive(Debug)]
pub struct Mirror {
    fd: OwnedFd,
    slot: u32,
}

impl Mirror {
    pub(super) fn new(fd: OwnedFd, slot: u32) -> Self {
        Self { fd, slot }
    }

    /// Becomes the proxy: this program's code and memory are gone, the process and its descriptors
    /// remain. The process must be single-threaded. `region` is the one that the mirror was created
    /// for.
    ///
    /// # Errors
    /// The kernel's; the program is not started then.
    pub fn become_proxy(
        self,
        region: ProxyRegion,
        start: ProxyStart<'_>,
    ) -> Result<Infallible, Error> {
        let fd = move_descriptor(self.fd)?;
        map_slots(&region, fd.as_fd())?;
        make_writable(&region, self.slot)?;
        let signals = Inherited::from_this_process()?;
        let source = Source {
            region: &region,
            program: region.program(),
            fd: fd.as_raw_fd() as u64,
            polls: start.polls,
            arguments: start.arguments,
            signals,
        };
        let executable = start.executable.as_ref();
        let executable = executable.map_or(u64::MAX, |fd| fd.as_raw_fd() as u64);
        let data = Data::new(&source, self.slot, executable);
        // SAFETY: both go to parts of the region, which is this process's alone and large enough:
        // its size was computed for these arguments. No reference to it is kept.
        unsafe {
            copy_to(region.address(), blob().bytes);
            copy_to(region.data(), &data.bytes(&region));
        }
        protect(&region)?;
        c_library::unregister()?;
        signals::catch(&region, signals)?;
        let (entry, slot) = (region.address(), u64::from(self.slot));
        // They belong to the proxy from here on.
        std::mem::forget((region, fd, start.executable));
        // SAFETY: the blob is mapped and executable. It expects its slot in RDI and a stack with
        // room for an address, and never returns: nothing that Rust assumes about this program's
        // memory is used any more.
        unsafe { asm!("jmp {entry}", entry = in(reg) entry, in("rdi") slot, options(noreturn)) }
    }
}

/// Moves the descriptor to the highest number, which programs do not use.
fn move_descriptor(fd: OwnedFd) -> Result<OwnedFd, Error> {
    use std::os::fd::FromRawFd;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed(DESCRIPTOR))?;
    let last = i32::try_from(soft.saturating_sub(1)).unwrap_or(i32::MAX);
    let raw = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(last)).map_err(failed(DESCRIPTOR))?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn map_slots(region: &ProxyRegion, fd: BorrowedFd<'_>) -> Result<(), Error> {
    let address = usize::try_from(region.slots())
        .ok()
        .and_then(NonZeroUsize::new);
    let size = usize::try_from(SLOTS_SIZE).ok().and_then(NonZeroUsize::new);
    let (address, size) = address
        .zip(size)
        .ok_or_else(|| failed(MEMORY)(Errno::ENOMEM))?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: it replaces a part of the region, to which there is no reference.
    let mapped = unsafe {
        mmap(
            Some(address),
            size,
            protection,
            flags,
            fd,
            MIRROR_SLOTS.cast_signed(),
        )
    };
    mapped.map(drop).map_err(failed(MEMORY))
}

/// Makes the blob executable and read-only.
fn protect(region: &ProxyRegion) -> Result<(), Error> {
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    // SAFETY: the first page of the region, to which there is no reference.
    unsafe { mprotect(region.start(), BLOB_SIZE, protection) }.map_err(failed(MEMORY))
}

/// Makes the blob, the data, and the stack for a slot writable.
fn make_writable(region: &ProxyRegion, slot: u32) -> Result<(), Error> {
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let stack = region.stack(slot);
    let code_and_data = (region.address(), BLOB_SIZE + region.data_size());
    for (start, size) in [code_and_data, (stack, STACK_SIZE)] {
        let start =
            NonNull::new(start as *mut c_void).ok_or_else(|| failed(MEMORY)(Errno::EFAULT))?;
        // SAFETY: parts of the region, to which there is no reference.
        unsafe { mprotect(start, size, protection) }.map_err(failed(MEMORY))?;
    }
    Ok(())
}

/// # Safety
/// `bytes.len()` bytes at `address` are writable and used by nobody else.
unsafe fn copy_to(address: u64, bytes: &[u8]) {
    let to = address as usize as *mut u8;
    // SAFETY: the caller's promise; a slice of this program does not overlap them.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

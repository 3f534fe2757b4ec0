//! What the library for vhost does not ask of the kernel's vhost-net.

#![allow(
    unsafe_code,
    reason = "ioctl is a foreign function that takes addresses"
)]

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;

/// Type of vhost's requests, and the number of this one (`linux/vhost.h`).
const VHOST: u8 = 0xaf;
const SET_VRING_BUSYLOOP_TIMEOUT: u8 = 0x23;

/// `struct vhost_vring_state`.
#[repr(C)]
struct VringState {
    index: libc::c_uint,
    num: libc::c_uint,
}

/// Has vhost-net look for work of a queue for so many microseconds before it waits for a notification.
///
/// # Errors
/// The kernel knows no such queue, or lacks the request (Linux before 4.6).
pub fn set_busy_poll(vhost: &impl AsRawFd, queue: u32, timeout_us: u32) -> io::Result<()> {
    let state = VringState {
        index: queue,
        num: timeout_us,
    };
    let request =
        nix::request_code_write!(VHOST, SET_VRING_BUSYLOOP_TIMEOUT, size_of::<VringState>());
    // SAFETY: the request requires a `struct vhost_vring_state`, which the kernel reads during the call only.
    let set = unsafe { libc::ioctl(vhost.as_raw_fd(), request, &raw const state) };
    Ok(Errno::result(set).map(drop)?)
}

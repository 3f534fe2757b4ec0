//! Tap devices: network interfaces of the base whose other side is a program.

#![allow(
    unsafe_code,
    reason = "ioctl is a foreign function that takes addresses"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;

/// Bytes of the header before each packet (`struct virtio_net_hdr_v1`).
const HEADER_SIZE: libc::c_int = 12;

/// The program's side of a tap device, which is removed when this is closed. Packets have the
/// virtio-net header.
#[derive(Debug)]
pub struct Tap {
    /// One for each of its queues.
    files: Vec<File>,
}

impl Tap {
    /// Creates an interface of that name with so many queues, at least one. A flow of packets goes by the queue
    /// by which it comes.
    ///
    /// # Errors
    /// The system's error: no driver, no right, a name that is in use or too long, too many queues.
    pub fn create(name: &str, queues: usize) -> io::Result<Self> {
        let several = if queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several;
        let files = (0..queues.max(1)).map(|_| open_queue(name, flags));
        Ok(Self {
            files: files.collect::<io::Result<_>>()?,
        })
    }

    /// Sets the offloads that the other side supports: packets without checksums, or larger than an
    /// MTU (bits `TUN_F_*`).
    ///
    /// # Errors
    /// Bits that the kernel does not know.
    pub fn set_offload(&self, bits: libc::c_uint) -> io::Result<()> {
        // SAFETY: this request takes a number and no address.
        let set = unsafe {
            libc::ioctl(
                self.file().as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(bits),
            )
        };
        Ok(Errno::result(set).map(drop)?)
    }

    /// Has a queue of several take packets, which at first all do, or take none.
    ///
    /// # Errors
    /// There is no such queue, or it is as wanted already.
    pub fn set_attached(&self, queue: usize, attached: bool) -> io::Result<()> {
        let file = self.files.get(queue).ok_or(io::ErrorKind::NotFound)?;
        let flag = match attached {
            true => libc::IFF_ATTACH_QUEUE,
            false => libc::IFF_DETACH_QUEUE,
        };
        let request = request("", flag)?;
        // SAFETY: the request requires a `struct ifreq`, which this is, and which the kernel reads during the call
        // only.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETQUEUE, &raw const request) };
        Ok(Errno::result(set).map(drop)?)
    }

    /// The descriptor of its first queue.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.files[0]
    }

    /// The descriptors of its queues.
    #[must_use]
    pub fn queues(&self) -> &[File] {
        &self.files
    }
}

/// Opens a queue of an interface, which the first one creates.
fn open_queue(name: &str, flags: libc::c_int) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    let mut request = request(name, flags)?;
    // SAFETY: the request requires a `struct ifreq`, which this is, and which the kernel reads
    // and writes during the call only.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(made)?;
    let header_size = HEADER_SIZE;
    // SAFETY: the request requires an `int`, which the kernel reads during the call only.
    let sized = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::TUNSETVNETHDRSZ,
            &raw const header_size,
        )
    };
    Errno::result(sized)?;
    Ok(file)
}

/// A request about an interface.
fn request(name: &str, flags: libc::c_int) -> io::Result<libc::ifreq> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: flags as libc::c_short,
        },
    };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

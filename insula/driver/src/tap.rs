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
pub struct Tap(File);

impl Tap {
    /// Creates an interface of that name.
    ///
    /// # Errors
    /// The system's error: no driver, no right, a name that is in use or too long.
    pub fn create(name: &str) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        let mut request = libc::ifreq {
            ifr_name: [0; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru {
                ifru_flags: (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short,
            },
        };
        if name.len() >= libc::IFNAMSIZ {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
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
        Ok(Self(file))
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
                self.0.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(bits),
            )
        };
        Ok(Errno::result(set).map(drop)?)
    }

    /// Its descriptor.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }
}

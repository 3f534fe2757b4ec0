//! In a node: imported memory of a process of the base.

#![allow(unsafe_code, reason = "the grant may be revoked at any moment")]

use std::io::{PipeReader, PipeWriter, pipe};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes that a pipe accepts at once without a reader.
const PIECE: usize = 4096;

/// A mapped range of granted memory. It is only ever copied from and to by the kernel, which fails
/// where nothing is granted (any more).
#[derive(Debug)]
pub struct ImportedGrant {
    start: NonNull<libc::c_void>,
    size: NonZeroUsize,
    address: u64,
    reader: PipeReader,
    writer: PipeWriter,
}

// SAFETY: the mapping is not tied to a thread, and no reference to its memory is ever made.
unsafe impl Send for ImportedGrant {}

impl ImportedGrant {
    /// Maps `size` bytes from the granting process's `address` on.
    pub(super) fn map(fd: &OwnedFd, address: u64, size: usize) -> Result<Self, Errno> {
        let size = NonZeroUsize::new(size).ok_or(Errno::EINVAL)?;
        let offset = i64::try_from(address).map_err(|_| Errno::EINVAL)?;
        let (reader, writer) = pipe().map_err(|_| Errno::EMFILE)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            mmap(
                None,
                size,
                protection,
                MapFlags::MAP_SHARED,
                fd.as_fd(),
                offset,
            )
        }?;
        Ok(Self {
            start,
            size,
            address,
            reader,
            writer,
        })
    }

    /// Copies bytes from an address of the granting process, at most 4096.
    ///
    /// # Errors
    /// `EFAULT` when the address was not granted or its grant was revoked, `EINVAL` when it is not
    /// mapped here.
    pub fn load(&mut self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let from = self.pointer(address, into.len())?;
        // SAFETY: the kernel reads these bytes of the mapping, or fails.
        let count = unsafe { libc::write(self.writer.as_raw_fd(), from.cast_const(), into.len()) };
        let count = Errno::result(count)?.unsigned_abs();
        // A fault in the middle leaves a part.
        let read = nix::unistd::read(&self.reader, &mut into[..count])?;
        if read == into.len() {
            Ok(())
        } else {
            Err(Errno::EFAULT)
        }
    }

    /// Copies bytes to an address of the granting process, at most 4096.
    ///
    /// # Errors
    /// As [`Self::load`]; `EFAULT` also when the grant is read-only.
    pub fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let to = self.pointer(address, bytes.len())?;
        nix::unistd::write(&self.writer, bytes)?;
        // SAFETY: the kernel writes these bytes of the mapping, or fails.
        let count = unsafe { libc::read(self.reader.as_raw_fd(), to, bytes.len()) };
        let done = Errno::result(count).map_or(0, isize::unsigned_abs);
        // Drains the rest, so that it does not come out of the pipe next time.
        let mut rest = vec![0; bytes.len() - done];
        if rest.is_empty() {
            return Ok(());
        }
        nix::unistd::read(&self.reader, &mut rest)?;
        Err(Errno::EFAULT)
    }

    fn pointer(&self, address: u64, size: usize) -> Result<*mut libc::c_void, Errno> {
        let offset = address.checked_sub(self.address).ok_or(Errno::EINVAL)?;
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if size > PIECE || offset > self.size.get() || size > self.size.get() - offset {
            return Err(Errno::EINVAL);
        }
        Ok(self.start.as_ptr().wrapping_byte_add(offset))
    }
}

impl Drop for ImportedGrant {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; nothing refers to it.
        let _ = unsafe { munmap(self.start, self.size.get()) };
    }
}

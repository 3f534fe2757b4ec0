//! Copying from one program's memory to another's, through the direct map.

#![allow(
    unsafe_code,
    reason = "programs' frames are accessed through the direct map"
)]

use insula_bare::memory;

use crate::model::errno::Errno;
use crate::model::vma::Protection;
use crate::task::address_space::AddressSpace;

/// Failure of a copy: on which side, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// The source cannot be read.
    Source(Errno),
    /// The destination cannot be written.
    Destination(Errno),
}

/// Copies bytes from one address space to another.
///
/// # Errors
/// [`TransferError`], with the errors of [`AddressSpace::translate`].
pub fn copy(
    (source, from): (&mut AddressSpace, u64),
    (destination, to): (&mut AddressSpace, u64),
    length: u64,
) -> Result<(), TransferError> {
    let mut done = 0;
    while done < length {
        let (write_at, room) = destination
            .translate(to.wrapping_add(done), Protection::WRITE)
            .map_err(TransferError::Destination)?;
        let (read_at, present) = source
            .translate(from.wrapping_add(done), Protection::READ)
            .map_err(TransferError::Source)?;
        let part = (length - done).min(room as u64).min(present as u64);
        // SAFETY: pages of programs, which hold no Rust object and stay mapped as long as their spaces
        // are borrowed.
        unsafe { memory::copy(read_at, write_at, part) };
        done += part;
    }
    Ok(())
}

impl AddressSpace {
    /// Copies bytes within the address space.
    ///
    /// # Errors
    /// As of [`copy`].
    pub fn copy_within(&mut self, from: u64, to: u64, length: u64) -> Result<(), TransferError> {
        let mut done = 0;
        while done < length {
            // First what may give the page a new frame.
            let (write_at, room) = self
                .translate(to.wrapping_add(done), Protection::WRITE)
                .map_err(TransferError::Destination)?;
            let (read_at, present) = self
                .translate(from.wrapping_add(done), Protection::READ)
                .map_err(TransferError::Source)?;
            let part = (length - done).min(room as u64).min(present as u64);
            // SAFETY: as above.
            unsafe { memory::copy(read_at, write_at, part) };
            done += part;
        }
        Ok(())
    }
}

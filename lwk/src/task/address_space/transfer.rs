//! Copying from one program's memory to another's, through the direct map.

#![allow(
    unsafe_code,
    reason = "programs' frames are accessed through the direct map"
)]

use insula_bare::memory::{self, PhysAddr};

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

/// A physical address, and the bytes from there that lie together.
type Place = (PhysAddr, usize);

/// Copies bytes from an address in one address space to one in another.
///
/// # Errors
/// [`TransferError`], with the errors of [`AddressSpace::translate`].
pub fn copy(
    (source, from): (&mut AddressSpace, u64),
    (destination, to): (&mut AddressSpace, u64),
    length: u64,
) -> Result<(), TransferError> {
    let (mut read, mut written) = (None, None);
    copy_parts(length, |done| {
        let to = part_at(&mut written, done, || {
            destination.destination(to.wrapping_add(done))
        })?;
        let from = part_at(&mut read, done, || source.source(from.wrapping_add(done)))?;
        Ok((from, to))
    })
}

/// The place that was found before, from this many bytes on, or a new one if that has ended. Both spaces are
/// borrowed throughout, so what was found stays where it is.
fn part_at(
    found: &mut Option<(u64, Place)>,
    done: u64,
    find: impl FnOnce() -> Result<Place, TransferError>,
) -> Result<Place, TransferError> {
    if let Some((at, (address, bytes))) = *found
        && done - at < bytes as u64
    {
        let skip = done - at;
        return Ok((PhysAddr(address.0 + skip), bytes - skip as usize));
    }
    let place = find()?;
    *found = Some((done, place));
    Ok(place)
}

impl AddressSpace {
    /// Copies bytes within the address space.
    ///
    /// # Errors
    /// As of [`copy`].
    pub fn copy_within(&mut self, from: u64, to: u64, length: u64) -> Result<(), TransferError> {
        copy_parts(length, |done| {
            // First what may give the page a new frame.
            let to = self.destination(to.wrapping_add(done))?;
            Ok((self.source(from.wrapping_add(done))?, to))
        })
    }

    /// Copies bytes of one frame into the program's memory, to an address.
    ///
    /// # Errors
    /// As of [`AddressSpace::translate`].
    pub fn write_from(&mut self, to: u64, from: PhysAddr, length: u64) -> Result<(), Errno> {
        let copied = copy_parts(length, |done| {
            let to = self.destination(to.wrapping_add(done))?;
            let from = PhysAddr(from.0 + done);
            Ok(((from, (length - done) as usize), to))
        });
        copied.map_err(|(TransferError::Source(error) | TransferError::Destination(error))| error)
    }

    fn source(&mut self, address: u64) -> Result<Place, TransferError> {
        self.translate(address, Protection::READ)
            .map_err(TransferError::Source)
    }

    fn destination(&mut self, address: u64) -> Result<Place, TransferError> {
        self.translate(address, Protection::WRITE)
            .map_err(TransferError::Destination)
    }
}

/// Copies bytes part by part. `places` returns where the rest lies, by the number of bytes copied: the
/// source, and the destination. It borrows their address spaces.
fn copy_parts(
    length: u64,
    mut places: impl FnMut(u64) -> Result<(Place, Place), TransferError>,
) -> Result<(), TransferError> {
    let mut done = 0;
    while done < length {
        let ((from, present), (to, room)) = places(done)?;
        let part = (length - done).min(room as u64).min(present as u64);
        // SAFETY: pages of programs, which hold no Rust object and stay mapped as long as their spaces
        // are borrowed.
        unsafe { memory::copy(from, to, part) };
        done += part;
    }
    Ok(())
}

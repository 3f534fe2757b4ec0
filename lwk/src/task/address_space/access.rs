//! Kernel access to a program's memory.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use insula_bare::memory::{self, PhysAddr};

use crate::hw::memory::room::reserve_in;
use crate::model::errno::Errno;
use crate::model::vma::{Protection, VmaFlags};
use crate::task::address_space::AddressSpace;
use crate::task::address_space::page::is_copied_on_write;

impl AddressSpace {
    /// Copies bytes out of the program's memory.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < to.len() {
            let (at, room) = self.translate(address.wrapping_add(done as u64), Protection::READ)?;
            let part = (to.len() - done).min(room);
            // SAFETY: a page of the program, which stays mapped as long as the space is borrowed.
            unsafe { memory::read(at, &mut to[done..done + part]) };
            done += part;
        }
        Ok(())
    }

    /// Copies bytes into the program's memory.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < from.len() {
            let (at, room) =
                self.translate(address.wrapping_add(done as u64), Protection::WRITE)?;
            let part = (from.len() - done).min(room);
            // SAFETY: as above; a program's page holds no Rust object.
            unsafe { memory::write(at, &from[done..done + part]) };
            done += part;
        }
        Ok(())
    }

    /// Checks that a range can be written.
    ///
    /// # Errors
    /// As of [`AddressSpace::translate`].
    pub fn can_write(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let mut at = start;
        while at < end {
            let (_, room) = self.translate(at, Protection::WRITE)?;
            at += room as u64;
        }
        Ok(())
    }

    /// Reads the 32-bit word at an address, a multiple of 4.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn word(&mut self, address: u64) -> Result<u32, Errno> {
        let (at, _) = self.translate(address & !3, Protection::READ)?;
        let word = at.in_direct_map().cast::<AtomicU32>();
        // SAFETY: an aligned word in a page of the program, which stays mapped as long as the space
        // is borrowed, and is read atomically.
        Ok(unsafe { &*word }.load(Ordering::SeqCst))
    }

    /// Stores `new` to the 32-bit word at an address, a multiple of 4, if it is `old`. Returns its
    /// previous value.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn compare_exchange(&mut self, address: u64, old: u32, new: u32) -> Result<u32, Errno> {
        let (at, _) = self.translate(address & !3, Protection::WRITE)?;
        let word = at.in_direct_map().cast::<AtomicU32>();
        // SAFETY: as above; it is also written atomically.
        let word = unsafe { &*word };
        let result = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
        Ok(result.unwrap_or_else(|found| found))
    }

    /// Translates an address for an access. Returns the physical address, and the bytes to the end
    /// of the page or VMA.
    ///
    /// # Errors
    /// [`Errno::EFAULT`]; [`Errno::EBASEPAGE`] if a page of a base mapping has to be faulted in.
    pub fn translate(
        &mut self,
        address: u64,
        access: Protection,
    ) -> Result<(PhysAddr, usize), Errno> {
        let vma = match self.vmas.find(address) {
            Some(vma) => vma,
            None => self.grow_stack(address)?,
        };
        // What registers answer is not for the kernel, which has them in no map.
        if !vma.protection.contains(access) || vma.flags.contains(VmaFlags::DEVICE) {
            return Err(Errno::EFAULT);
        }
        if vma.flags.contains(VmaFlags::BASE) {
            return self.translate_base(&vma, address, access);
        }
        let writes = access.contains(Protection::WRITE);
        let page = match self.table().find(address) {
            Some(page) if !(writes && is_copied_on_write(&page)) => page,
            found => {
                let resolved = match found {
                    None => self.fault(address, access),
                    Some(_) => self.own(address),
                };
                resolved.map_err(|_| Errno::EFAULT)?;
                self.table().find(address).ok_or(Errno::EFAULT)?
            }
        };
        let skip = address - page.start;
        let room = (page.size.bytes() - skip).min(vma.end - address);
        Ok((PhysAddr(page.frame.0 + skip), room as usize))
    }

    /// Reads the string at an address, without its NUL.
    ///
    /// # Errors
    /// [`Errno::EFAULT`]; [`Errno::E2BIG`] if it is longer than `most`; [`Errno::ENOMEM`].
    pub fn string(&mut self, address: u64, most: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        self.append_string(address, most, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the string at an address, without its NUL, to bytes.
    ///
    /// # Errors
    /// As of [`AddressSpace::string`].
    pub fn append_string(
        &mut self,
        address: u64,
        most: usize,
        to: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        /// Bytes read at once: no part crosses a page boundary.
        const PART: u64 = 256;
        let (mut at, before) = (address, to.len());
        loop {
            let mut part = [0; PART as usize];
            let part = &mut part[..(PART - at % PART) as usize];
            self.read(at, part)?;
            let end = part.iter().position(|&byte| byte == 0);
            let found = &part[..end.unwrap_or(part.len())];
            if to.len() - before + found.len() > most {
                return Err(Errno::E2BIG);
            }
            reserve_in(to, found.len())?;
            to.extend_from_slice(found);
            if end.is_some() {
                return Ok(());
            }
            at = at.wrapping_add(part.len() as u64);
        }
    }
}

//! Reading and writing a program's memory.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use insula_bare::memory::{self, PhysAddr};

use super::{Rights, Space};
use crate::memory::reserve_in;
use crate::process::errno::Errno;

impl Space {
    /// Copies bytes out of the program's memory.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < to.len() {
            let (at, room) = self.reach(address.wrapping_add(done as u64), Rights::READ)?;
            let part = (to.len() - done).min(room);
            // SAFETY: a page of the program's, which stays as long as the space is borrowed.
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
            let (at, room) = self.reach(address.wrapping_add(done as u64), Rights::WRITE)?;
            let part = (from.len() - done).min(room);
            // SAFETY: as above; nothing of Rust's lies in a program's page.
            unsafe { memory::write(at, &from[done..done + part]) };
            done += part;
        }
        Ok(())
    }

    /// The word of 32 bits at an address, which is a multiple of 4.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn word(&mut self, address: u64) -> Result<u32, Errno> {
        let (at, _) = self.reach(address & !3, Rights::READ)?;
        let word = at.in_direct_map().cast::<AtomicU32>();
        // SAFETY: an aligned word in a page of the program's, which stays as long as the space is
        // borrowed, and is read whole, as an atomic.
        Ok(unsafe { &*word }.load(Ordering::SeqCst))
    }

    /// Changes the word of 32 bits at an address, which is a multiple of 4, if it is `old`. What it
    /// was.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn compare_exchange(&mut self, address: u64, old: u32, new: u32) -> Result<u32, Errno> {
        let (at, _) = self.reach(address & !3, Rights::WRITE)?;
        let word = at.in_direct_map().cast::<AtomicU32>();
        // SAFETY: as above; it is written whole, too.
        let word = unsafe { &*word };
        let result = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
        Ok(result.unwrap_or_else(|found| found))
    }

    /// Where an address lies in memory, for that access, and how many bytes follow it there.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn reach(&mut self, address: u64, access: Rights) -> Result<(PhysAddr, usize), Errno> {
        let area = match self.areas.find(address) {
            Some(area) => area,
            None => self.grow_stack(address)?,
        };
        if !area.rights.contains(access) {
            return Err(Errno::EFAULT);
        }
        if self.table().find(address).is_none() {
            self.fault(address, access).map_err(|_| Errno::EFAULT)?;
        }
        let page = self.table().find(address).ok_or(Errno::EFAULT)?;
        let skip = address - page.start;
        let room = (page.size.bytes() - skip).min(area.end - address);
        Ok((PhysAddr(page.frame.0 + skip), room as usize))
    }

    /// The string at an address, without the NUL that ends it.
    ///
    /// # Errors
    /// [`Errno::EFAULT`]; [`Errno::E2BIG`] if it is longer than `most`; [`Errno::ENOMEM`].
    pub fn string(&mut self, address: u64, most: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        self.append_string(address, most, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the string at an address, without the NUL that ends it, to others.
    ///
    /// # Errors
    /// As of [`Space::string`].
    pub fn append_string(
        &mut self,
        address: u64,
        most: usize,
        to: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        /// Bytes that are read at once: no part reaches into the next page.
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

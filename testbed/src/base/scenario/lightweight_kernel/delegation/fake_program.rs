//! Program of the simulated kernel: its page tables, its memory, and its calls.

use std::mem::offset_of;
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use insula_abi::lwk::{
    ANSWER_FAULT, COPY_ON_WRITE, MAY_MAP_SHIFT, MayMap, PAGE_SIZE, Process, SyscallSlot,
    base_state, process_state, request,
};
use nix::errno::Errno;

use super::fake_lwk::{AREA, CANCEL, FakeLwk, WAKE};
use crate::base::Finding;
use crate::base::support::insula_command::{TIMEOUT, wait_for};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// A program of the simulated kernel.
pub(super) struct Program<'a> {
    pub(super) fake: &'a FakeLwk,
    pub(super) child: Child,
    /// Offset of the process's first page in the area.
    pub(super) process: u64,
    /// Offset of the root of its page table; locked to change the table.
    pub(super) tables: Mutex<u64>,
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) result: i64,
    pub(super) value: u64,
    /// Remote faults of the base during the call.
    pub(super) remote_faults: u32,
}

/// Memory of the program that is mapped on demand: below it no address is valid, its last page is
/// read-only.
pub(super) const DEMAND: std::ops::Range<u64> = 0x4000_0000..0x4100_0000;
/// The last page of that memory.
pub(super) const READ_ONLY: u64 = DEMAND.end - PAGE_SIZE;

impl Program<'_> {
    pub(super) fn get(&self, field: usize) -> Result<u64, Finding> {
        self.fake.memory.get(self.process + field as u64)
    }

    pub(super) fn set(&self, field: usize, value: u64) -> Result<(), Finding> {
        self.fake.memory.set(self.process + field as u64, value)
    }

    pub(super) fn root(&self) -> Result<u64, Finding> {
        Ok(*self.tables.lock().map_err(|_| Finding::new("poisoned"))?)
    }

    /// Entry for an address; its tables are allocated if missing. The caller has locked the tables.
    fn entry(&self, root: u64, address: u64) -> Result<u64, Finding> {
        let mut table = root;
        for shift in [39, 30, 21] {
            let entry = table + (address >> shift) % 512 * 8;
            if self.fake.memory.get(entry)? & PRESENT == 0 {
                let below = self.fake.memory.start + self.fake.alloc_frame()?;
                self.fake
                    .memory
                    .set(entry, below | PRESENT | WRITABLE | USER)?;
            }
            table = (self.fake.memory.get(entry)? & ADDRESS) - self.fake.memory.start;
        }
        Ok(table + (address >> 12) % 512 * 8)
    }

    /// Frame at an address, allocated if missing.
    pub(super) fn frame(&self, address: u64) -> Result<u64, Finding> {
        let root = self.tables.lock().map_err(|_| Finding::new("poisoned"))?;
        let entry = self.entry(*root, address)?;
        if self.fake.memory.get(entry)? & PRESENT == 0 {
            let writable = if address >= READ_ONLY { 0 } else { WRITABLE };
            let frame = self.fake.memory.start + self.fake.alloc_frame()?;
            self.fake
                .memory
                .set(entry, frame | PRESENT | USER | writable)?;
        }
        Ok((self.fake.memory.get(entry)? & ADDRESS) - self.fake.memory.start)
    }

    /// Unmaps the frames of a range, as munmap does; the base may still have them mapped.
    pub(super) fn unmap(&self, range: std::ops::Range<u64>) -> Result<Vec<u64>, Finding> {
        let root = self.tables.lock().map_err(|_| Finding::new("poisoned"))?;
        let mut frames = Vec::new();
        for address in range.step_by(PAGE_SIZE as usize) {
            let entry = self.entry(*root, address)?;
            let old = self.fake.memory.word(entry)?.swap(0, Ordering::AcqRel);
            if old & PRESENT != 0 {
                frames.push((old & ADDRESS) - self.fake.memory.start);
            }
        }
        fence(Ordering::SeqCst);
        Ok(frames)
    }

    /// Has a page that is mapped be copied before it is written. Returns its frame.
    pub(super) fn copy_on_write(&self, address: u64) -> Result<u64, Finding> {
        let frame = self.frame(address)?;
        let root = self.tables.lock().map_err(|_| Finding::new("poisoned"))?;
        let entry = self.entry(*root, address)?;
        let value = self.fake.memory.get(entry)? & !WRITABLE;
        self.fake.memory.set(entry, value | COPY_ON_WRITE)?;
        Ok(frame)
    }

    /// Replaces a page by a copy if it is copied on write.
    fn copy(&self, address: u64) -> Result<(), Finding> {
        let root = self.tables.lock().map_err(|_| Finding::new("poisoned"))?;
        let entry = self.entry(*root, address)?;
        let value = self.fake.memory.get(entry)?;
        if value & COPY_ON_WRITE == 0 {
            return Ok(());
        }
        let (from, to) = (
            (value & ADDRESS) - self.fake.memory.start,
            self.fake.alloc_frame()?,
        );
        for at in (0..PAGE_SIZE).step_by(8) {
            let word = self.fake.memory.get(from + at)?;
            self.fake.memory.set(to + at, word)?;
        }
        let frame = self.fake.memory.start + to;
        self.fake
            .memory
            .set(entry, frame | PRESENT | USER | WRITABLE)
    }

    /// Whether the program has a page at an address.
    pub(super) fn is_mapped(&self, address: u64) -> Result<bool, Finding> {
        Ok(self.entry_at(address)? & PRESENT != 0)
    }

    /// Returns the entry of an address.
    pub(super) fn entry_at(&self, address: u64) -> Result<u64, Finding> {
        let root = self.tables.lock().map_err(|_| Finding::new("poisoned"))?;
        let entry = self.entry(*root, address)?;
        self.fake.memory.get(entry)
    }

    /// Whether the base may have mapped something in the address's window.
    pub(super) fn may_be_mapped(&self, address: u64) -> Result<bool, Finding> {
        let window = (address >> MAY_MAP_SHIFT) % (8 * size_of::<MayMap>() as u64);
        let word = self
            .fake
            .memory
            .get(self.process + PAGE_SIZE + window / 64 * 8)?;
        Ok(word >> (window % 64) & 1 == 1)
    }

    /// Writes to the program's memory.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Finding> {
        for (index, piece) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            let at = address + 8 * index as u64;
            let frame = self.frame(at & !(PAGE_SIZE - 1))?;
            self.fake
                .memory
                .set(frame + at % PAGE_SIZE, u64::from_le_bytes(word))?;
        }
        Ok(())
    }

    /// Reads from the program's memory.
    pub(super) fn read(&self, address: u64, size: usize) -> Result<Vec<u8>, Finding> {
        let mut bytes = Vec::with_capacity(size);
        while bytes.len() < size {
            let at = address + bytes.len() as u64;
            let left = (PAGE_SIZE - at % PAGE_SIZE).min((size - bytes.len()) as u64);
            let mut piece = vec![0; left as usize];
            let frame = self.frame(at - at % PAGE_SIZE)?;
            self.fake
                .memory
                .words
                .read(frame + at % PAGE_SIZE, &mut piece)?;
            bytes.append(&mut piece);
        }
        Ok(bytes)
    }

    /// Number by which the base knows the process.
    pub(super) fn number(&self) -> u64 {
        (self.process - AREA) / PAGE_SIZE
    }

    pub(super) fn first_slot(&self) -> Result<u64, Finding> {
        self.get(offset_of!(Process, slot))
    }

    /// Handles a remote fault of the base.
    fn handle_fault(&self, address: u64, write: bool) -> Result<u64, Finding> {
        if !DEMAND.contains(&address) || (write && address >= READ_ONLY) {
            return Ok((-(Errno::EFAULT as i64)).cast_unsigned());
        }
        self.copy(address & !(PAGE_SIZE - 1))?;
        self.frame(address).map(|_| 0)
    }

    fn slot_word(&self, slot: u64, field: usize) -> u64 {
        AREA + slot * size_of::<SyscallSlot>() as u64 + field as u64
    }

    pub(super) fn post(&self, slot: u64, number: u64, arguments: &[u64]) -> Result<u64, Finding> {
        let sequence = self
            .fake
            .memory
            .get(self.slot_word(slot, offset_of!(SyscallSlot, sequence)))?
            + 1;
        self.fake.memory.set(
            self.slot_word(slot, offset_of!(SyscallSlot, number)),
            number,
        )?;
        for (index, argument) in arguments.iter().enumerate() {
            let field = offset_of!(SyscallSlot, arguments) + index * 8;
            self.fake
                .memory
                .set(self.slot_word(slot, field), *argument)?;
        }
        self.fake.memory.set(
            self.slot_word(slot, offset_of!(SyscallSlot, sequence)),
            sequence,
        )?;
        fence(Ordering::SeqCst);
        Ok(sequence)
    }

    /// Waits until the request of that sequence number is answered, and wakes a waiter.
    pub(super) fn wait(&self, slot: u64, sequence: u64) -> Result<(), Finding> {
        let began = Instant::now();
        let answered = self.slot_word(slot, offset_of!(SyscallSlot, answer_sequence));
        let asleep = self.slot_word(slot, offset_of!(SyscallSlot, base_asleep));
        while self.fake.memory.get(answered)? != sequence {
            if self.fake.memory.get(asleep)? != 0 {
                self.fake.notify(WAKE, slot)?;
            }
            std::hint::spin_loop();
            Finding::unless(began.elapsed() < TIMEOUT, || {
                format!("sequence {sequence} of slot {slot} was not answered")
            })?;
        }
        Ok(())
    }

    /// Answer in a slot: its kind and its result.
    pub(super) fn answer(&self, slot: u64) -> Result<(u64, i64), Finding> {
        let get = |field| self.fake.memory.get(self.slot_word(slot, field));
        let kind = get(offset_of!(SyscallSlot, kind))?;
        Ok((kind, get(offset_of!(SyscallSlot, result))?.cast_signed()))
    }

    /// Whether the slot says that the base has not found the page of a remote fault yet.
    pub(super) fn is_faulting(&self, slot: u64) -> Result<bool, Finding> {
        let faulting = self.slot_word(slot, offset_of!(SyscallSlot, faulting));
        Ok(self.fake.memory.get(faulting)? == 1)
    }

    /// Posts a request that nobody answers.
    pub(super) fn post_unanswered(
        &self,
        slot: u64,
        number: u64,
        argument: u64,
    ) -> Result<(), Finding> {
        self.post(slot, number, &[argument])?;
        if self
            .fake
            .memory
            .get(self.slot_word(slot, offset_of!(SyscallSlot, base_asleep)))?
            != 0
        {
            self.fake.notify(WAKE, slot)?;
        }
        Ok(())
    }

    /// Makes a call and waits for its end.
    pub(super) fn call(
        &self,
        slot: u64,
        number: u64,
        arguments: &[u64],
    ) -> Result<Outcome, Finding> {
        let mut remote_faults = 0;
        let mut sequence = self.post(slot, number, arguments)?;
        loop {
            self.wait(slot, sequence)?;
            let get = |field| self.fake.memory.get(self.slot_word(slot, field));
            let result = get(offset_of!(SyscallSlot, result))?;
            let value = get(offset_of!(SyscallSlot, value))?;
            if get(offset_of!(SyscallSlot, kind))? != ANSWER_FAULT {
                let result = result.cast_signed();
                return Ok(Outcome {
                    result,
                    value,
                    remote_faults,
                });
            }
            remote_faults += 1;
            let resolved = self.handle_fault(result, value != 0)?;
            sequence = self.post(slot, request::RESOLVED, &[resolved])?;
        }
    }

    /// Makes a call that is cancelled once, right after it is posted. Returns its result.
    pub(super) fn call_cancelled(
        &self,
        slot: u64,
        number: u64,
        arguments: &[u64],
    ) -> Result<i64, Finding> {
        let sequence = self.post(slot, number, arguments)?;
        self.cancel(slot)?;
        self.wait(slot, sequence)?;
        let result = self.slot_word(slot, offset_of!(SyscallSlot, result));
        Ok(self.fake.memory.get(result)?.cast_signed())
    }

    /// Cancels the call of a slot.
    pub(super) fn cancel(&self, slot: u64) -> Result<(), Finding> {
        self.fake.notify(CANCEL, slot)
    }

    /// Waits until the base reports that the proxy maps and pins nothing any more, and acknowledges
    /// that.
    pub(super) fn finish(self) -> Result<(), Finding> {
        let quiesced = || Ok((self.get(0)? == base_state::QUIESCED).then_some(()));
        wait_for("the base to quiesce", quiesced)?;
        self.set(offset_of!(Process, lwk_state), process_state::REAPED)
    }
}

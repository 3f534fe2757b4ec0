//! The ring of a kernel's log, as kernel/printk/printk_ringbuffer.h defines it.
//!
//! A ring consists of two arrays of equal length, descriptors and infos, and a ring of bytes for
//! the texts. Record number `seq` has the descriptor and the info at `seq` modulo their length. The
//! top two bits of the descriptor's `state_var` are the state of the record, the others (`id`) the
//! generation of records in the slot; the writer changes it before it touches an old record, and
//! after it has finished a new one. So a copy made between two equal reads of it is consistent.

use super::error::LogError;
use super::kernel::Kernel;
use super::layout::{LogLayout, Structures};
use super::record::{Caller, Record};
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::memory::PhysicalMemory;

/// `DESC_FLAGS_SHIFT`: the id is below, the state above.
const STATE_SHIFT: u32 = 62;
/// `DESC_ID_MASK`.
const ID_MASK: u64 = (1 << STATE_SHIFT) - 1;
/// Records in the largest ring: `LOG_BUF_LEN_MAX` bytes of text, 32 bytes for each.
const COUNT_BITS_MAX: u32 = 26;
/// Bytes in the largest ring of texts: `LOG_BUF_LEN_MAX`.
const SIZE_BITS_MAX: u32 = 31;
/// `LPOS_DATALESS`: a position with this bit has no text.
const DATALESS: u64 = 1;
/// `NO_LPOS`, later `EMPTY_LINE_LPOS`: the text is empty. (Otherwise there was no room for it.)
const EMPTY_LPOS: u64 = 3;
/// Size of the id before every text, and alignment of both.
const BLOCK_ID_SIZE: u64 = 8;
/// Reads of one record, each overtaken by the writer, after which it is skipped for now.
const ATTEMPTS: usize = 16;

/// Contents of a slot, relative to the record requested.
pub(super) enum Slot {
    /// The record.
    Whole(Record),
    /// The record without its text, which was overwritten or had no room.
    Lost,
    /// Another record, or an unfinished one.
    Other,
}

/// `enum desc_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Being written.
    Reserved,
    /// Written, but its writer may still extend it.
    Committed,
    /// Final.
    Finalized,
    /// Its text may be gone.
    Reusable,
}

impl State {
    fn of(state_var: u64) -> Self {
        match state_var >> STATE_SHIFT {
            0 => Self::Reserved,
            1 => Self::Committed,
            2 => Self::Finalized,
            _ => Self::Reusable,
        }
    }
}

/// A ring, by the addresses of its arrays.
pub(super) struct Ring<'a, M: ?Sized> {
    kernel: Kernel<'a, M>,
    /// Physical address, like the next three.
    header: u64,
    descs: u64,
    infos: u64,
    data: u64,
    count_bits: u32,
    size_bits: u32,
}

impl<'a, M: PhysicalMemory + ?Sized> Ring<'a, M> {
    /// The ring that the kernel at `physical` uses now. It starts with one in its image, and may
    /// change early in its boot to a larger one with the same records.
    pub(super) fn attach(
        layout: &'a LogLayout,
        memory: &'a M,
        physical: u64,
    ) -> Result<Self, LogError> {
        let kernel = Kernel::at(layout, memory, physical);
        let structures = &layout.structures;
        let (prb, virtual_offset) = kernel.prb()?;
        let header = kernel.of_virtual(prb, virtual_offset)?;
        let bytes = kernel.bytes_at(header, structures.ring_size)?;
        let impossible = LogError::Damaged("its size is invalid");
        let bits = |offset, max| u32_at(&bytes, offset).filter(|bits| (1..=max).contains(bits));
        let array =
            |offset| kernel.of_virtual(u64_at(&bytes, offset).unwrap_or_default(), virtual_offset);
        Ok(Self {
            header,
            count_bits: bits(structures.count_bits, COUNT_BITS_MAX).ok_or(impossible.clone())?,
            size_bits: bits(structures.size_bits, SIZE_BITS_MAX).ok_or(impossible)?,
            descs: array(structures.descs)?,
            infos: array(structures.infos)?,
            data: array(structures.data)?,
            kernel,
        })
    }

    /// Number of slots.
    pub(super) fn capacity(&self) -> u64 {
        1 << self.count_bits
    }

    /// Record `seq`; with `unfinished` also if its writer may still extend it.
    pub(super) fn slot(&self, seq: u64, unfinished: bool) -> Result<Slot, LogError> {
        for _ in 0..ATTEMPTS {
            let state_var = self.state_var(seq)?;
            let slot = self.copy(seq, state_var, unfinished)?;
            if self.state_var(seq)? == state_var {
                return Ok(slot);
            }
        }
        Ok(Slot::Other)
    }

    /// Number of the oldest record; `None` when the writer is too fast, or the ring is
    /// inconsistent.
    pub(super) fn first_seq(&self) -> Result<Option<u64>, LogError> {
        for _ in 0..ATTEMPTS {
            let tail_id = self.end(self.structures().tail_id)?;
            let state_var = self.state_var(tail_id)?;
            if state_var & ID_MASK != tail_id || State::of(state_var) == State::Reserved {
                continue;
            }
            let seq = u64_at(&self.info(tail_id)?, self.structures().seq);
            if self.state_var(tail_id)? == state_var {
                return Ok(seq);
            }
        }
        Ok(None)
    }

    /// Number of records from the oldest to the newest, whatever their state.
    pub(super) fn len(&self) -> Result<u64, LogError> {
        let tail_id = self.end(self.structures().tail_id)?;
        let head_id = self.end(self.structures().head_id)?;
        // An inconsistent ring counts as empty.
        Ok(Some(head_id.wrapping_sub(tail_id) & ID_MASK)
            .filter(|len| *len < self.capacity())
            .map_or(0, |len| len + 1))
    }

    /// Copies record `seq`, whose descriptor had `state_var`. The caller must check that it has not
    /// changed.
    fn copy(&self, seq: u64, state_var: u64, unfinished: bool) -> Result<Slot, LogError> {
        let s = self.structures();
        let info = self.info(seq)?;
        // No number follows the last; accepting it as a record would keep a reader there for ever.
        if u64_at(&info, s.seq) != Some(seq) || seq == u64::MAX {
            return Ok(Slot::Other);
        }
        match State::of(state_var) {
            State::Finalized => {}
            State::Committed if unfinished => {}
            State::Reusable => return Ok(Slot::Lost),
            State::Reserved | State::Committed => return Ok(Slot::Other),
        }
        let size = u16_at(&info, s.text_len).unwrap_or_default();
        let Some(text) = self.text(seq, state_var & ID_MASK, size)? else {
            return Ok(Slot::Lost);
        };
        let byte = |offset: usize| info.get(offset).copied().unwrap_or_default();
        let level_mask = 1_u8
            .checked_shl(s.level_bits as u32)
            .unwrap_or_default()
            .wrapping_sub(1);
        Ok(Slot::Whole(Record {
            seq,
            timestamp_ns: u64_at(&info, s.ts_nsec).unwrap_or_default(),
            level: byte(s.level_bit / 8) >> (s.level_bit % 8) & level_mask,
            facility: byte(s.facility),
            caller: Caller::from_id(u32_at(&info, s.caller_id).unwrap_or_default()),
            text: String::from_utf8_lossy(&text).into_owned(),
        }))
    }

    /// The text of record `seq`, `size` bytes, if it exists: `get_data` of
    /// kernel/printk/printk_ringbuffer.c.
    fn text(&self, seq: u64, id: u64, size: u16) -> Result<Option<Vec<u8>>, LogError> {
        let s = self.structures();
        let desc = self.kernel.bytes_at(self.desc_address(seq), s.desc_size)?;
        let position = |offset| u64_at(&desc, offset).unwrap_or_default();
        let (begin, next) = (position(s.begin), position(s.next));
        if begin & next & DATALESS != 0 {
            return Ok((begin == EMPTY_LPOS && next == EMPTY_LPOS).then(Vec::new));
        }
        let Some((start, block_size)) = self.block(begin, next) else {
            return Ok(None);
        };
        let address = self.data.wrapping_add(start);
        if block_size < BLOCK_ID_SIZE + u64::from(size) || self.kernel.u64_at(address)? != id {
            return Ok(None);
        }
        self.kernel
            .bytes_at(address.wrapping_add(BLOCK_ID_SIZE), usize::from(size))
            .map(Some)
    }

    /// Offset and size in the ring of texts of the block from `begin` to `next`. A block that would
    /// cross the ring's end is placed at its start; so is, in older kernels, one that would end
    /// exactly there.
    fn block(&self, begin: u64, next: u64) -> Option<(u64, u64)> {
        let ring_size = 1_u64 << self.size_bits;
        let index = |position: u64| position & (ring_size - 1);
        let wraps = |position: u64| position >> self.size_bits;
        let is_behind = wraps(begin.wrapping_add(ring_size)) == wraps(next);
        if !begin.is_multiple_of(BLOCK_ID_SIZE) {
            None
        } else if wraps(begin) == wraps(next) && begin < next {
            Some((index(begin), next - begin))
        } else if is_behind && index(next) == 0 {
            Some((index(begin), ring_size - index(begin)))
        } else if is_behind {
            Some((0, index(next)))
        } else {
            None
        }
    }

    fn structures(&self) -> &'a Structures {
        &self.kernel.layout.structures
    }

    /// `head_id` or `tail_id`, by its offset.
    fn end(&self, offset: usize) -> Result<u64, LogError> {
        Ok(self
            .kernel
            .u64_at(self.header.wrapping_add(offset as u64))?
            & ID_MASK)
    }

    fn state_var(&self, n: u64) -> Result<u64, LogError> {
        self.kernel.u64_at(
            self.desc_address(n)
                .wrapping_add(self.structures().state_var as u64),
        )
    }

    /// The descriptor for `n`, a record number or an id.
    fn desc_address(&self, n: u64) -> u64 {
        self.element(self.descs, n, self.structures().desc_size)
    }

    /// The info for `n`, a record number or an id.
    fn info(&self, n: u64) -> Result<Vec<u8>, LogError> {
        let size = self.structures().info_size;
        self.kernel
            .bytes_at(self.element(self.infos, n, size), size)
    }

    fn element(&self, array: u64, n: u64, size: usize) -> u64 {
        let index = n & (self.capacity() - 1);
        array.wrapping_add(index.wrapping_mul(size as u64))
    }
}

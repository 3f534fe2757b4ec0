//! A logging kernel: writes records as kernel/printk/printk_ringbuffer.c does, step by step.

use super::image;
use super::memory::{DIRECT_MAP, DYNAMIC_ARRAYS, FakeMemory, PLACEMENT, of_link};
use std::collections::VecDeque;

const DESC_SIZE: u64 = 24;
const INFO_SIZE: u64 = 88;
const ID_MASK: u64 = (1 << 62) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Reserved = 0,
    Committed = 1,
    Finalized = 2,
    Reusable = 3,
}

/// One of the kernel's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// In the image.
    Static,
    /// In allocated memory.
    Dynamic,
}

/// The writer of a ring.
pub struct Printk {
    count_bits: u32,
    size_bits: u32,
    header: u64,
    descs: u64,
    infos: u64,
    /// Physical address of the ring of texts.
    pub data: u64,
    /// Whether a text may end exactly at the ring's end (newer kernels; older ones place it at the
    /// start).
    pub exact_fit: bool,
    /// Number of the next record.
    pub next_seq: u64,
    head_lpos: u64,
    /// Records with descriptors in the ring: number, and start and end of the text.
    records: VecDeque<(u64, u64, u64)>,
    /// Number of the first record whose text is in the ring.
    first_with_text: u64,
}

impl Printk {
    /// An empty ring, which the kernel uses from now on.
    pub fn new(memory: &FakeMemory, which: Which, count_bits: u32, size_bits: u32) -> Self {
        let (variable, arrays, pointer_base) = match which {
            Which::Static => {
                let offset = PLACEMENT.virtual_offset + image::TEXT;
                (
                    image::STATIC_RING,
                    of_link(image::STATIC_ARRAYS),
                    offset.wrapping_sub(PLACEMENT.physical),
                )
            }
            Which::Dynamic => (image::DYNAMIC_RING, DYNAMIC_ARRAYS, DIRECT_MAP),
        };
        let count = 1_u64 << count_bits;
        let (descs, infos) = (arrays, arrays + count * DESC_SIZE);
        let data = infos + count * INFO_SIZE;
        let header = of_link(variable);
        let printk = Self {
            count_bits,
            size_bits,
            header,
            descs,
            infos,
            data,
            exact_fit: false,
            next_seq: 0,
            head_lpos: 0_u64.wrapping_sub(1 << size_bits),
            records: VecDeque::new(),
            first_with_text: 0,
        };
        memory.write(header, &count_bits.to_le_bytes());
        memory.write_u64(header + 8, pointer_base.wrapping_add(descs));
        memory.write_u64(header + 16, pointer_base.wrapping_add(infos));
        memory.write(header + 48, &size_bits.to_le_bytes());
        memory.write_u64(header + 56, pointer_base.wrapping_add(data));
        printk.set_ends(memory);
        // The static initialisers of _DEFINE_PRINTKRB.
        memory.write_u64(infos, 0_u64.wrapping_sub(count));
        printk.set_state(memory, printk.id(u64::MAX), State::Reusable);
        memory.write_u64(of_link(image::PRB), PLACEMENT.virtual_offset + variable);
        printk
    }

    /// Number of the oldest record whose text exists.
    pub fn first_seq(&self) -> u64 {
        self.first_with_text
    }

    /// Writes a complete record; its time is its number in milliseconds.
    pub fn log(&mut self, memory: &FakeMemory, text: &[u8]) {
        let seq = self.reserve(memory, text);
        self.set_state(memory, self.id(seq), State::Finalized);
    }

    /// Writes a record without finalizing it, as its writer may continue.
    pub fn reserve(&mut self, memory: &FakeMemory, text: &[u8]) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        let (begin, next) = self.make_room(memory, text.len() as u64);
        let id = self.id(seq);
        self.records.push_back((seq, begin, next));
        self.set_ends(memory);
        self.set_state(memory, id, State::Reserved);
        let desc = self.descs + (seq & self.mask()) * DESC_SIZE;
        memory.write_u64(desc + 8, begin);
        memory.write_u64(desc + 16, next);
        self.write_info(memory, seq, text.len() as u16);
        if begin & 1 == 0 {
            let block = self.data
                + if self.wraps(begin, next) {
                    0
                } else {
                    begin & ((1 << self.size_bits) - 1)
                };
            memory.write_u64(block, id);
            memory.write(block + 8, text);
        }
        seq
    }

    pub fn set_state_of(&self, memory: &FakeMemory, seq: u64, state: State) {
        self.set_state(memory, self.id(seq), state);
    }

    fn write_info(&self, memory: &FakeMemory, seq: u64, text_len: u16) {
        let info = self.infos + (seq & self.mask()) * INFO_SIZE;
        memory.write_u64(info, seq);
        memory.write_u64(info + 8, seq * 1_000_000);
        memory.write(info + 16, &text_len.to_le_bytes());
        memory.write(info + 18, &[0, 6 << 5 | 0b11]);
        memory.write(info + 20, &(0x8000_0002_u32).to_le_bytes());
    }

    /// Makes room for one more record and its text: `desc_reserve` and `data_alloc`.
    fn make_room(&mut self, memory: &FakeMemory, text_size: u64) -> (u64, u64) {
        if self.records.len() as u64 == 1 << self.count_bits {
            self.drop_text_before(memory, self.records[0].0 + 1);
            self.records.pop_front();
            self.set_ends(memory);
        }
        let ring_size = 1_u64 << self.size_bits;
        if text_size == 0 {
            return (3, 3);
        }
        let block_size = (8 + text_size).next_multiple_of(8);
        if block_size > ring_size / 2 {
            return (1, 1);
        }
        let begin = self.head_lpos;
        let end = begin.wrapping_add(block_size);
        // A block that would wrap is placed at the start of the next round.
        let next = if self.wraps(begin, end) {
            (end & !(ring_size - 1)).wrapping_add(block_size)
        } else {
            end
        };
        let overwritten =
            |&&(_, old, _): &&(u64, u64, u64)| old & 1 == 0 && next.wrapping_sub(old) > ring_size;
        if let Some(&(last, ..)) = self.records.iter().rfind(overwritten) {
            self.drop_text_before(memory, last + 1);
        }
        self.head_lpos = next;
        (begin, next)
    }

    /// Whether the block from `begin` to `end` crosses the ring's end.
    fn wraps(&self, begin: u64, end: u64) -> bool {
        let last = end.wrapping_sub(u64::from(self.exact_fit));
        begin >> self.size_bits != last >> self.size_bits
    }

    fn drop_text_before(&mut self, memory: &FakeMemory, seq: u64) {
        for &(old, ..) in self.records.iter().filter(|record| record.0 < seq) {
            self.set_state(memory, self.id(old), State::Reusable);
        }
        self.first_with_text = self.first_with_text.max(seq);
    }

    fn set_ends(&self, memory: &FakeMemory) {
        let tail = self
            .records
            .front()
            .filter(|_| self.next_seq >= 1 << self.count_bits);
        let tail_id = self.id(tail.map_or(u64::MAX, |record| record.0));
        memory.write_u64(self.header + 32, tail_id);
        memory.write_u64(self.header + 24, self.id(self.next_seq.wrapping_sub(1)));
    }

    fn set_state(&self, memory: &FakeMemory, id: u64, state: State) {
        memory.write_u64(
            self.descs + (id & self.mask()) * DESC_SIZE,
            id | (state as u64) << 62,
        );
    }

    /// The id of record `seq`; that before the first is `DESC0_ID`.
    fn id(&self, seq: u64) -> u64 {
        seq.wrapping_sub(1 << self.count_bits) & ID_MASK
    }

    fn mask(&self) -> u64 {
        (1 << self.count_bits) - 1
    }
}

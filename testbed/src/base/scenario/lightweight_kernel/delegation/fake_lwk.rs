//! Node whose part in delegation is simulated by this process: it writes to the node's memory what
//! a lightweight kernel would, page tables of programs included.
//!
//! Only the base's doorbell must be rung by the node's core. That is all that the core does: it
//! waits for a word in its memory and sends the interrupt that the word describes.

use std::mem::offset_of;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use insula::driver::{Driver, Node};
use insula::name::Name;
use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_abi::lwk::{
    ANSWER_FAULT, Delegation, DelegationPlace, MAY_MAP_SHIFT, MayMap, PAGE_SIZE, Process,
    SyscallSlot, base_state, process_state, request,
};
use insula_abi::{GRANULE, NUMA_ANY, Request};
use nix::errno::Errno;

use crate::base::Finding;
use crate::base::support::insula_command::{TIMEOUT, wait_for};
use crate::base::support::nodes::idle_node::IdleMemory;

/// Size of the node's memory: its first granule is used as below, the rest are frames for programs.
const SIZE: u64 = 16 * GRANULE;
const AREA: u64 = 0x10_0000;
pub(super) const AREA_PAGES: u32 = 64;
/// Vector without a handler: the core has its interrupts off.
const VECTOR: u64 = 0x40;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The simulated kernel.
pub(super) struct FakeLwk {
    pub(super) node: Node,
    memory: IdleMemory,
    /// Offsets of free frames.
    frames: Mutex<Vec<u64>>,
}

impl FakeLwk {
    /// Starts one on a core.
    pub(super) fn start(name: &str, cpu: u32) -> Result<Self, Finding> {
        let driver = Driver::open()?;
        let memory = IdleMemory::allocate(
            &driver,
            &Request {
                size: SIZE,
                min_phys: 0,
                max_phys: 0,
                chunk_max: 0,
                numa_node: NUMA_ANY,
                flags: 0,
            },
        )?;
        Finding::unless(memory.size >= SIZE / 2, || {
            format!("no large chunk: {:x}", memory.size)
        })?;
        let name: Name = name.parse()?;
        let node = driver.create_node(&name.to_abi(), &[], &[cpu], &memory.object)?;
        let frames = (GRANULE / PAGE_SIZE..memory.size / PAGE_SIZE).rev();
        let fake = Self {
            node,
            frames: Mutex::new(frames.map(|frame| frame * PAGE_SIZE).collect()),
            memory,
        };
        fake.node.lay_out_delegation(fake.place())?;
        fake.node.start(&fake.memory.start_parameters())?;
        Ok(fake)
    }

    pub(super) fn place(&self) -> DelegationPlace {
        DelegationPlace {
            start: self.memory.start + AREA,
            pages: AREA_PAGES,
            reserved: 0,
        }
    }

    /// Announces that it accepts programs.
    pub(super) fn accept_programs(&self) -> Result<(), Finding> {
        let (_, cpus) = self.node.info()?;
        let apic_id = cpus.first().map_or(0, |cpu| u64::from(cpu.apic_id));
        let doorbell = DOORBELL_VALID | apic_id << DOORBELL_APIC_SHIFT | VECTOR;
        self.memory
            .set(AREA + offset_of!(Delegation, lwk_doorbell) as u64, doorbell)
    }

    /// A word of the area's header.
    fn header(&self, field: usize) -> Result<u64, Finding> {
        self.memory.get(AREA + field as u64)
    }

    pub(super) fn magic(&self) -> Result<u64, Finding> {
        self.header(offset_of!(Delegation, magic))
    }

    /// Allocates a frame, cleared.
    fn alloc_frame(&self) -> Result<u64, Finding> {
        let frame = self
            .frames
            .lock()
            .map_err(|_| Finding::new("poisoned"))?
            .pop();
        let frame = frame.ok_or_else(|| Finding::new("no frame is left"))?;
        self.fill(frame, 0)?;
        Ok(frame)
    }

    /// Frees frames.
    pub(super) fn free_frames(&self, frames: impl IntoIterator<Item = u64>) {
        if let Ok(mut free) = self.frames.lock() {
            free.extend(frames);
        }
    }

    /// Fills a frame with a word.
    pub(super) fn fill(&self, frame: u64, value: u64) -> Result<(), Finding> {
        (0..PAGE_SIZE)
            .step_by(8)
            .try_for_each(|at| self.memory.set(frame + at, value))
    }

    /// Whether a frame is filled with that word.
    pub(super) fn is_filled(&self, frame: u64, value: u64) -> Result<bool, Finding> {
        let mut bytes = vec![0; PAGE_SIZE as usize];
        self.memory.words.read(frame, &mut bytes)?;
        Ok(bytes
            .as_chunks::<8>()
            .0
            .iter()
            .all(|word| u64::from_ne_bytes(*word) == value))
    }

    /// Next process that the base has marked as pending.
    fn next_pending(&self) -> Result<Option<u64>, Finding> {
        let bits = AREA + offset_of!(Delegation, process_pending) as u64;
        for word in 0..u64::from(AREA_PAGES).div_ceil(64) {
            let taken = self.memory.word(bits + word * 8)?.load(Ordering::Acquire);
            if taken != 0 {
                let bit = u64::from(taken.trailing_zeros());
                self.memory
                    .word(bits + word * 8)?
                    .fetch_and(!(1 << bit), Ordering::AcqRel);
                return Ok(Some(word * 64 + bit));
            }
        }
        Ok(None)
    }

    /// Starts a program by `insula exec`, and accepts it.
    pub(super) fn exec(&self, command: &mut Command) -> Result<Program<'_>, Finding> {
        let child = command.spawn()?;
        let started = || {
            let process = self.next_pending()?;
            let process = process.filter(|&process| {
                self.memory
                    .get(AREA + process * PAGE_SIZE)
                    .is_ok_and(|state| state == base_state::STARTED)
            });
            Ok(process)
        };
        let process = AREA + wait_for("a program to start", started)? * PAGE_SIZE;
        let program = Program {
            fake: self,
            child,
            process,
            tables: Mutex::new(self.alloc_frame()?),
        };
        let root = program.root()?;
        program.set(offset_of!(Process, page_table), self.memory.start + root)?;
        program.set(offset_of!(Process, lwk_state), process_state::ALIVE)?;
        Ok(program)
    }

    /// Rings the base's doorbell.
    fn ring(&self) -> Result<(), Finding> {
        let doorbell = self.header(offset_of!(Delegation, base_doorbell))?;
        let (apic_id, vector) = (doorbell >> DOORBELL_APIC_SHIFT & 0xff, doorbell & 0xff);
        self.memory.send(apic_id, vector)?;
        let began = Instant::now();
        while !self.memory.has_sent()? {
            std::hint::spin_loop();
            Finding::unless(began.elapsed() < TIMEOUT, || {
                "the node sends nothing".into()
            })?;
        }
        Ok(())
    }

    /// Sets a slot's bit in one of the two bitmaps for the base, and rings.
    fn notify(&self, bitmap: usize, slot: u64) -> Result<(), Finding> {
        let word = AREA + bitmap as u64 + slot / 64 * 8;
        self.memory
            .word(word)?
            .fetch_or(1 << (slot % 64), Ordering::AcqRel);
        self.ring()
    }
}

/// A program of the simulated kernel.
pub(super) struct Program<'a> {
    fake: &'a FakeLwk,
    pub(super) child: Child,
    /// Offset of the process's first page in the area.
    process: u64,
    /// Offset of the root of its page table; locked to change the table.
    tables: Mutex<u64>,
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

    fn root(&self) -> Result<u64, Finding> {
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
                self.fake
                    .notify(offset_of!(Delegation, wake_pending), slot)?;
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
            self.fake
                .notify(offset_of!(Delegation, wake_pending), slot)?;
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
        self.fake
            .notify(offset_of!(Delegation, cancel_pending), slot)
    }

    /// Waits until the base reports that the proxy maps and pins nothing any more, and acknowledges
    /// that.
    pub(super) fn finish(self) -> Result<(), Finding> {
        let quiesced = || Ok((self.get(0)? == base_state::QUIESCED).then_some(()));
        wait_for("the base to quiesce", quiesced)?;
        self.set(offset_of!(Process, lwk_state), process_state::REAPED)
    }
}

//! A node whose part in delegation this process plays: it writes to the node's memory what a
//! lightweight kernel would, page tables of programs included.
//!
//! What it cannot do from there is to ring the base's doorbell. That is all that the node's core
//! does: it waits for a word in its memory and sends the interrupt that it tells of.

use std::mem::offset_of;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use insula::driver::{Driver, Node};
use insula::name::Name;
use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_abi::lwk::{
    ANSWER_FAULT, Delegation, DelegationPlace, Desk, PAGE_SIZE, Process, REACH_SHIFT, Reach,
    base_state, process_state, request,
};
use insula_abi::{GRANULE, NUMA_ANY, Request};
use nix::errno::Errno;

use super::Finding;
use super::idle_node::IdleMemory;
use super::insula_command::{PATIENCE, wait_for};

/// The node's memory: its first granule is as below, the rest are frames for programs.
const SIZE: u64 = 16 * GRANULE;
const AREA: u64 = 0x10_0000;
pub(super) const AREA_PAGES: u32 = 64;
/// A vector at which nobody listens: the core has its interrupts off.
const VECTOR: u64 = 0x40;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const FOR_PROGRAMS: u64 = 4;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The node.
pub(super) struct FakeLwk {
    pub(super) node: Node,
    memory: IdleMemory,
    /// Offsets of frames that nobody has.
    frames: Mutex<Vec<u64>>,
}

impl FakeLwk {
    /// Starts one on a core.
    pub(super) fn start(name: &str, cpu: u32) -> Result<Self, Finding> {
        let driver = Driver::open()?;
        let memory = IdleMemory::take(
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
        fake.node.start(&fake.memory.beginning())?;
        Ok(fake)
    }

    pub(super) fn place(&self) -> DelegationPlace {
        DelegationPlace {
            start: self.memory.start + AREA,
            pages: AREA_PAGES,
            reserved: 0,
        }
    }

    /// Says that it takes programs.
    pub(super) fn take_programs(&self) -> Result<(), Finding> {
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

    /// A frame, cleared.
    fn take_frame(&self) -> Result<u64, Finding> {
        let frame = self
            .frames
            .lock()
            .map_err(|_| Finding::new("poisoned"))?
            .pop();
        let frame = frame.ok_or_else(|| Finding::new("no frame is left"))?;
        self.fill(frame, 0)?;
        Ok(frame)
    }

    /// Frames for others.
    pub(super) fn give_frames(&self, frames: impl IntoIterator<Item = u64>) {
        if let Ok(mut free) = self.frames.lock() {
            free.extend(frames);
        }
    }

    /// Writes a word all over a frame.
    pub(super) fn fill(&self, frame: u64, value: u64) -> Result<(), Finding> {
        (0..PAGE_SIZE)
            .step_by(8)
            .try_for_each(|at| self.memory.set(frame + at, value))
    }

    /// Whether a frame has that word all over.
    pub(super) fn is_filled(&self, frame: u64, value: u64) -> Result<bool, Finding> {
        let mut bytes = vec![0; PAGE_SIZE as usize];
        self.memory.words.read(frame, &mut bytes)?;
        Ok(bytes
            .as_chunks::<8>()
            .0
            .iter()
            .all(|word| u64::from_ne_bytes(*word) == value))
    }

    /// The next process that the base wants looked at.
    fn attention(&self) -> Result<Option<u64>, Finding> {
        let bits = AREA + offset_of!(Delegation, attention) as u64;
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

    /// Begins a program by `insula exec`, and takes notice of it.
    pub(super) fn begin(&self, command: &mut Command) -> Result<Program<'_>, Finding> {
        let child = command.spawn()?;
        let begun = || {
            let process = self.attention()?;
            let process = process.filter(|&process| {
                self.memory
                    .get(AREA + process * PAGE_SIZE)
                    .is_ok_and(|state| state == base_state::BEGUN)
            });
            Ok(process)
        };
        let process = AREA + wait_for("a program to begin", begun)? * PAGE_SIZE;
        let program = Program {
            fake: self,
            child,
            process,
            tables: Mutex::new(self.take_frame()?),
        };
        let root = program.root()?;
        program.say(offset_of!(Process, page_table), self.memory.start + root)?;
        program.say(offset_of!(Process, lwk_state), process_state::ALIVE)?;
        Ok(program)
    }

    /// Rings the base's doorbell.
    fn knock(&self) -> Result<(), Finding> {
        let doorbell = self.header(offset_of!(Delegation, base_doorbell))?;
        let (apic_id, vector) = (doorbell >> DOORBELL_APIC_SHIFT & 0xff, doorbell & 0xff);
        self.memory.send(apic_id, vector)?;
        let began = Instant::now();
        while !self.memory.has_sent()? {
            std::hint::spin_loop();
            Finding::unless(began.elapsed() < PATIENCE, || {
                "the node sends nothing".into()
            })?;
        }
        Ok(())
    }

    /// Sets a desk's bit in one of the two bitmaps for the base, and rings.
    fn tell(&self, bitmap: usize, desk: u64) -> Result<(), Finding> {
        let word = AREA + bitmap as u64 + desk / 64 * 8;
        self.memory
            .word(word)?
            .fetch_or(1 << (desk % 64), Ordering::AcqRel);
        self.knock()
    }
}

/// A program on it.
pub(super) struct Program<'a> {
    fake: &'a FakeLwk,
    pub(super) child: Child,
    /// Offset of its first page in the area.
    process: u64,
    /// Offset of its page table's root; whoever changes the table has it.
    tables: Mutex<u64>,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) result: i64,
    pub(super) value: u64,
    /// Pages that the base asked for meanwhile.
    pub(super) questions: u32,
}

/// The program's memory that is there when it is asked for: below it nothing is, in its last page
/// nothing may be written.
pub(super) const DEMAND: std::ops::Range<u64> = 0x4000_0000..0x4100_0000;
/// That last page.
pub(super) const READ_ONLY: u64 = DEMAND.end - PAGE_SIZE;

impl Program<'_> {
    pub(super) fn told(&self, field: usize) -> Result<u64, Finding> {
        self.fake.memory.get(self.process + field as u64)
    }

    pub(super) fn say(&self, field: usize, value: u64) -> Result<(), Finding> {
        self.fake.memory.set(self.process + field as u64, value)
    }

    fn root(&self) -> Result<u64, Finding> {
        Ok(*self.tables.lock().map_err(|_| Finding::new("poisoned"))?)
    }

    /// The entry for an address, its tables made if they are not there. The caller has the tables.
    fn entry(&self, root: u64, address: u64) -> Result<u64, Finding> {
        let mut table = root;
        for shift in [39, 30, 21] {
            let entry = table + (address >> shift) % 512 * 8;
            if self.fake.memory.get(entry)? & PRESENT == 0 {
                let below = self.fake.memory.start + self.fake.take_frame()?;
                self.fake
                    .memory
                    .set(entry, below | PRESENT | WRITABLE | FOR_PROGRAMS)?;
            }
            table = (self.fake.memory.get(entry)? & ADDRESS) - self.fake.memory.start;
        }
        Ok(table + (address >> 12) % 512 * 8)
    }

    /// The frame at an address, made if there is none.
    pub(super) fn frame(&self, address: u64) -> Result<u64, Finding> {
        let root = self.tables.lock().map_err(|_| Finding::new("poisoned"))?;
        let entry = self.entry(*root, address)?;
        if self.fake.memory.get(entry)? & PRESENT == 0 {
            let writable = if address >= READ_ONLY { 0 } else { WRITABLE };
            let frame = self.fake.memory.start + self.fake.take_frame()?;
            self.fake
                .memory
                .set(entry, frame | PRESENT | FOR_PROGRAMS | writable)?;
        }
        Ok((self.fake.memory.get(entry)? & ADDRESS) - self.fake.memory.start)
    }

    /// Takes the frames of a range away, as munmap does; the base may have them still.
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

    /// Whether the base may have something of the window that an address is in.
    pub(super) fn is_reached(&self, address: u64) -> Result<bool, Finding> {
        let window = (address >> REACH_SHIFT) % (8 * size_of::<Reach>() as u64);
        let word = self
            .fake
            .memory
            .get(self.process + PAGE_SIZE + window / 64 * 8)?;
        Ok(word >> (window % 64) & 1 == 1)
    }

    /// The program writes to its memory.
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

    /// And reads it.
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

    /// By what the base knows the process.
    pub(super) fn number(&self) -> u64 {
        (self.process - AREA) / PAGE_SIZE
    }

    pub(super) fn first_desk(&self) -> Result<u64, Finding> {
        self.told(offset_of!(Process, desk))
    }

    /// A fault of the base.
    fn resolve(&self, address: u64, write: bool) -> Result<u64, Finding> {
        if !DEMAND.contains(&address) || (write && address >= READ_ONLY) {
            return Ok((-(Errno::EFAULT as i64)).cast_unsigned());
        }
        self.frame(address).map(|_| 0)
    }

    fn desk_word(&self, desk: u64, field: usize) -> u64 {
        AREA + desk * size_of::<Desk>() as u64 + field as u64
    }

    pub(super) fn post(&self, desk: u64, number: u64, arguments: &[u64]) -> Result<u64, Finding> {
        let turn = self
            .fake
            .memory
            .get(self.desk_word(desk, offset_of!(Desk, turn)))?
            + 1;
        self.fake
            .memory
            .set(self.desk_word(desk, offset_of!(Desk, number)), number)?;
        for (index, argument) in arguments.iter().enumerate() {
            let field = offset_of!(Desk, arguments) + index * 8;
            self.fake
                .memory
                .set(self.desk_word(desk, field), *argument)?;
        }
        self.fake
            .memory
            .set(self.desk_word(desk, offset_of!(Desk, turn)), turn)?;
        fence(Ordering::SeqCst);
        Ok(turn)
    }

    /// Waits until a turn is answered, and wakes who sleeps.
    pub(super) fn wait(&self, desk: u64, turn: u64) -> Result<(), Finding> {
        let began = Instant::now();
        let answered = self.desk_word(desk, offset_of!(Desk, answer_turn));
        let asleep = self.desk_word(desk, offset_of!(Desk, base_asleep));
        while self.fake.memory.get(answered)? != turn {
            if self.fake.memory.get(asleep)? != 0 {
                self.fake.tell(offset_of!(Delegation, rung), desk)?;
            }
            std::hint::spin_loop();
            Finding::unless(began.elapsed() < PATIENCE, || {
                format!("turn {turn} of desk {desk} was not answered")
            })?;
        }
        Ok(())
    }

    /// What stands in a desk as the answer: its kind and its result.
    pub(super) fn answer(&self, desk: u64) -> Result<(u64, i64), Finding> {
        let get = |field| self.fake.memory.get(self.desk_word(desk, field));
        let kind = get(offset_of!(Desk, kind))?;
        Ok((kind, get(offset_of!(Desk, result))?.cast_signed()))
    }

    /// A turn that nobody answers.
    pub(super) fn last_turn(&self, desk: u64, number: u64, argument: u64) -> Result<(), Finding> {
        self.post(desk, number, &[argument])?;
        if self
            .fake
            .memory
            .get(self.desk_word(desk, offset_of!(Desk, base_asleep)))?
            != 0
        {
            self.fake.tell(offset_of!(Delegation, rung), desk)?;
        }
        Ok(())
    }

    /// A call, to its end.
    pub(super) fn call(
        &self,
        desk: u64,
        number: u64,
        arguments: &[u64],
    ) -> Result<Outcome, Finding> {
        let mut questions = 0;
        let mut turn = self.post(desk, number, arguments)?;
        loop {
            self.wait(desk, turn)?;
            let get = |field| self.fake.memory.get(self.desk_word(desk, field));
            let result = get(offset_of!(Desk, result))?;
            let value = get(offset_of!(Desk, value))?;
            if get(offset_of!(Desk, kind))? != ANSWER_FAULT {
                let result = result.cast_signed();
                return Ok(Outcome {
                    result,
                    value,
                    questions,
                });
            }
            questions += 1;
            let resolved = self.resolve(result, value != 0)?;
            turn = self.post(desk, request::RESOLVED, &[resolved])?;
        }
    }

    /// A call that is broken off as soon as it has been asked for, once; what came of it.
    pub(super) fn call_broken_off(
        &self,
        desk: u64,
        number: u64,
        arguments: &[u64],
    ) -> Result<i64, Finding> {
        let turn = self.post(desk, number, arguments)?;
        self.break_off(desk)?;
        self.wait(desk, turn)?;
        let result = self.desk_word(desk, offset_of!(Desk, result));
        Ok(self.fake.memory.get(result)?.cast_signed())
    }

    /// Breaks off what the base does for a desk.
    pub(super) fn break_off(&self, desk: u64) -> Result<(), Finding> {
        self.fake.tell(offset_of!(Delegation, interrupted), desk)
    }

    /// Waits until the base says that the proxy holds nothing any more, and agrees.
    pub(super) fn finish(self) -> Result<(), Finding> {
        let gone = || Ok((self.told(0)? == base_state::GONE).then_some(()));
        wait_for("the base to let go", gone)?;
        self.say(offset_of!(Process, lwk_state), process_state::DONE)
    }
}

//! Node whose part in delegation is simulated by this process: it writes to the node's memory what
//! a lightweight kernel would.
//!
//! Only the base's doorbell must be rung by the node's core. That is all that the core does: it
//! waits for a word in its memory and sends the interrupt that the word describes.

use std::mem::offset_of;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_abi::lwk::{
    Delegation, DelegationPlace, MAPS_PAGE, Maps, PAGE_SIZE, Process, base_state, process_state,
};
use insula_abi::{GRANULE, NUMA_ANY, Request};
use insula_driver::name::Name;
use insula_driver::{Driver, Node};

use super::fake_program::Program;
use crate::base::Finding;
use crate::base::support::insula_command::{TIMEOUT, wait_for};
use crate::base::support::nodes::idle_node::IdleMemory;

/// Size of the node's memory: its first granule is used as below, the rest are frames for programs.
const SIZE: u64 = 16 * GRANULE;
/// Offset of the delegation area in its memory.
pub(super) const AREA: u64 = 0x10_0000;
pub(super) const AREA_PAGES: u32 = 128;
/// Offset of the area's maps in its memory.
const MAPS: u64 = AREA + MAPS_PAGE as u64 * PAGE_SIZE;
/// A bitmap of slots for the base, by its offsets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bitmap {
    /// In [`Delegation`].
    summary: usize,
    /// In [`Maps`].
    bits: usize,
}

/// Slots whose waiter is to be woken.
pub(super) const WAKE: Bitmap = Bitmap {
    summary: offset_of!(Delegation, wake_summary),
    bits: offset_of!(Maps, wake_pending),
};
/// Slots whose call is to be cancelled.
pub(super) const CANCEL: Bitmap = Bitmap {
    summary: offset_of!(Delegation, cancel_summary),
    bits: offset_of!(Maps, cancel_pending),
};
/// Vector without a handler: the core has its interrupts off.
const VECTOR: u64 = 0x40;

/// The simulated kernel.
pub(super) struct FakeLwk {
    pub(super) node: Node,
    pub(super) memory: IdleMemory,
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
    pub(super) fn alloc_frame(&self) -> Result<u64, Finding> {
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
        let bits = MAPS + offset_of!(Maps, process_pending) as u64;
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

    /// Forgets that the base has marked a process as pending. Returns whether it had.
    pub(super) fn clear_pending(&self, process: u64) -> Result<bool, Finding> {
        let bits = MAPS + offset_of!(Maps, process_pending) as u64;
        let word = self.memory.word(bits + process / 64 * 8)?;
        let bit = 1 << (process % 64);
        Ok(word.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
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
    pub(super) fn ring(&self) -> Result<(), Finding> {
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
    pub(super) fn notify(&self, bitmap: Bitmap, slot: u64) -> Result<(), Finding> {
        let set = |word: u64, bit: u64| {
            let word = self.memory.word(word)?;
            word.fetch_or(1 << (bit % 64), Ordering::AcqRel);
            Ok::<_, Finding>(())
        };
        let word = slot / 64;
        set(MAPS + bitmap.bits as u64 + word * 8, slot)?;
        set(AREA + bitmap.summary as u64 + word / 64 * 8, word)?;
        self.ring()
    }
}

//! Minimal node: its core counts, sends an interrupt when a word in its memory requests one, and
//! reports registers of its local APIC on request.

use std::sync::atomic::{AtomicU64, Ordering};

use insula_abi::{GRANULE, NUMA_ANY, NodeStart, REQUEST_BLOCKS, Request};
use insula_driver::{Driver, Mapping, Memory};

use crate::base::Finding;
use crate::base::support::insula_command::wait_for;

const PAGE_SIZE: u64 = 4096;
/// Layout of its memory, all in its first granule.
const TABLES: u64 = 0x1000;
const POWER_OFF: u64 = 0x8000;
/// Value for the low word of the core's interrupt command register, then for the high word.
const COMMAND: u64 = 0x9000;
/// Offset of the requested register of its local APIC, then the register's value.
const REGISTER: u64 = COMMAND + 8;
/// Counter, incremented all the time.
const COUNT: u64 = COMMAND + 16;
/// Local APIC, in xAPIC mode.
const APIC: u64 = 0xfee0_0000;
/// Its interrupt request register, with 32 pending vectors in each word.
const IRR: u64 = 0x200;
/// Distance of two words.
const IRR_STEP: u64 = 0x10;
/// Uncached.
const DEVICE: u64 = 0x18;
/// Code of the core. RSI is the address of [`COMMAND`].
#[rustfmt::skip]
const CODE: [u8; 72] = [
    0xfa,                                       //    cli
    0xba, 0x00, 0x00, 0xe0, 0xfe,               //    mov edx, APIC
    0xc7, 0x82, 0xf0, 0x00, 0x00, 0x00,         //    mov dword ptr [rdx + 0xf0], 0x1ff
    0xff, 0x01, 0x00, 0x00,                     //      (the APIC takes interrupts)
    0x48, 0xff, 0x46, 0x10,                     // 1: inc qword ptr [rsi + 16]
    0x8b, 0x06,                                 //    mov eax, [rsi]
    0x85, 0xc0,                                 //    test eax, eax
    0x74, 0x15,                                 //    jz 2f
    0x8b, 0x4e, 0x04,                           //    mov ecx, [rsi + 4]
    0x89, 0x8a, 0x10, 0x03, 0x00, 0x00,         //    mov [rdx + 0x310], ecx
    0x89, 0x82, 0x00, 0x03, 0x00, 0x00,         //    mov [rdx + 0x300], eax
    0xc7, 0x06, 0x00, 0x00, 0x00, 0x00,         //    mov dword ptr [rsi], 0
    0x8b, 0x46, 0x08,                           // 2: mov eax, [rsi + 8]
    0x85, 0xc0,                                 //    test eax, eax
    0x74, 0x0d,                                 //    jz 3f
    0x8b, 0x0c, 0x02,                           //    mov ecx, [rdx + rax]
    0x89, 0x4e, 0x0c,                           //    mov [rsi + 12], ecx
    0xc7, 0x46, 0x08, 0x00, 0x00, 0x00, 0x00,   //    mov dword ptr [rsi + 8], 0
    0xf3, 0x90,                                 // 3: pause
    0xeb, 0xc9,                                 //    jmp 1b
    0x90,
];

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const LARGE: u64 = 0x80;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Request for supplied memory: for a node, with one spare granule.
pub(crate) const SUPPLY: Request = Request {
    size: 2 * GRANULE,
    min_phys: 0,
    max_phys: 0,
    chunk_max: 2 * GRANULE,
    numa_node: NUMA_ANY,
    flags: REQUEST_BLOCKS,
};

/// Memory for such a node, fully initialised.
pub(crate) struct IdleMemory {
    pub(crate) object: Memory,
    pub(crate) words: Mapping,
    /// Physical address of its first byte.
    pub(crate) start: u64,
    /// Size of its first chunk, in bytes.
    pub(crate) size: u64,
}

impl IdleMemory {
    /// Allocates it, and writes the core's code and the tables that map what a start needs.
    pub(crate) fn allocate(driver: &Driver, request: &Request) -> Result<Self, Finding> {
        let object = driver.create_memory()?;
        object.grow(request)?;
        let chunk = object.chunks()?.first().copied().unwrap_or_default();
        let memory = Self {
            words: object.map()?,
            object,
            start: chunk.start,
            size: chunk.size,
        };
        for (index, word) in CODE.as_chunks::<8>().0.iter().enumerate() {
            memory.set(8 * index as u64, u64::from_le_bytes(*word))?;
        }
        let (machine, _) = driver.machine()?;
        memory.map_for_core(machine.trampoline)?;
        Ok(memory)
    }

    fn map_for_core(&self, trampoline: u64) -> Result<(), Finding> {
        let table = |index: u64| TABLES + index * PAGE_SIZE;
        let entry = |index: u64| (self.start + table(index)) | PRESENT | WRITABLE;
        self.set(table(0), entry(1))?;
        // In each gibibyte only the wanted granule is mapped.
        let places = [(2, trampoline, 0), (3, self.start, 0), (4, APIC, DEVICE)];
        for (index, address, kind) in places {
            let gibibyte = table(1) + (address >> 30) * 8;
            let known = self.get(gibibyte)? & ADDRESS;
            let directory = if known == 0 {
                table(index)
            } else {
                known - self.start
            };
            self.set(gibibyte, (self.start + directory) | PRESENT | WRITABLE)?;
            let large = (address & !(GRANULE - 1)) | LARGE | PRESENT | WRITABLE | kind;
            self.set(directory + (address >> 21) % 512 * 8, large)?;
        }
        Ok(())
    }

    /// Parameters to start a node with this memory.
    pub(crate) fn start_parameters(&self) -> NodeStart {
        NodeStart {
            entry: self.start,
            page_table: self.start + TABLES,
            argument: self.start + COMMAND,
            power_off: self.start + POWER_OFF,
            reset: self.start + POWER_OFF + 1,
        }
    }

    /// Has the core send an interrupt.
    pub(crate) fn send(&self, apic_id: u64, vector: u64) -> Result<(), Finding> {
        self.set(COMMAND, apic_id << 56 | vector)
    }

    /// Whether it has been sent.
    pub(crate) fn has_sent(&self) -> Result<bool, Finding> {
        Ok(self.get(COMMAND)? & 0xffff_ffff == 0)
    }

    /// The core's counter.
    pub(crate) fn count(&self) -> Result<u64, Finding> {
        self.get(COUNT)
    }

    /// Vectors of the core's pending interrupts, none of which it handles.
    pub(crate) fn pending(&self) -> Result<Vec<u64>, Finding> {
        let mut vectors = Vec::new();
        for index in 0..8 {
            let bits = self.register(IRR + index * IRR_STEP)?;
            vectors.extend(
                (0..32)
                    .filter(|bit| bits >> bit & 1 == 1)
                    .map(|bit| index * 32 + bit),
            );
        }
        Ok(vectors)
    }

    /// Value of a register of the core's local APIC.
    fn register(&self, offset: u64) -> Result<u64, Finding> {
        self.set(REGISTER, offset)?;
        let answered = || {
            let word = self.get(REGISTER)?;
            Ok((word & 0xffff_ffff == 0).then_some(word >> 32))
        };
        wait_for("a core to report a register of its APIC", answered)
    }

    pub(crate) fn word(&self, offset: u64) -> Result<&AtomicU64, Finding> {
        Ok(self.words.word(offset)?)
    }

    pub(crate) fn get(&self, offset: u64) -> Result<u64, Finding> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, offset: u64, value: u64) -> Result<(), Finding> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }
}

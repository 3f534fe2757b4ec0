//! Notes of a kernel's core file: the registers of each core, VMCOREINFO, and why its monitor ended it.
//!
//! Source: the kernel's fs/binfmt_elf.c (`NT_PRSTATUS`), include/linux/elfcore.h (`struct
//! elf_prstatus`) and kernel/crash_core.c, which write the same; but for the last, which tools skip.

use kimage::running::Registers;

/// Owner of the notes that core files of processes also have.
const CORE: &str = "CORE";
/// Type of the note with the registers of a thread, or here of a core.
const NT_PRSTATUS: u32 = 1;
/// Owner of the note with VMCOREINFO; its type is 0.
const VMCOREINFO: &str = "VMCOREINFO";
/// Owner of the note with what the monitor of a confined node tells of its end, as text; its type is 0.
const MONITOR: &str = "INSULA-MONITOR";
/// Alignment of a note's parts in bytes.
const ALIGNMENT: usize = 4;

/// `struct elf_prstatus` of x86-64: its size, and offsets of the thread id and the registers.
const PRSTATUS_SIZE: usize = 336;
const PRSTATUS_PID: usize = 32;
const PRSTATUS_REGISTERS: usize = 112;

/// Notes, one after the other.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<u8>);

impl Notes {
    /// Adds the registers of the next core, in the order of the kernel's numbers, and the id of its
    /// current thread. Unknown registers are written as zeros, since tools count the cores by these
    /// notes.
    pub(super) fn processor(&mut self, thread: u32, registers: Option<&Registers>) {
        let mut status = [0; PRSTATUS_SIZE];
        let mut put = |at: usize, bytes: &[u8]| status[at..at + bytes.len()].copy_from_slice(bytes);
        put(PRSTATUS_PID, &thread.to_le_bytes());
        let words = registers.map(Registers::words).unwrap_or_default();
        for (index, word) in words.iter().enumerate() {
            put(PRSTATUS_REGISTERS + 8 * index, &word.to_le_bytes());
        }
        self.add(CORE, NT_PRSTATUS, &status);
    }

    /// Adds VMCOREINFO.
    pub(super) fn vmcoreinfo(&mut self, text: &[u8]) {
        self.add(VMCOREINFO, 0, text);
    }

    /// Adds what ended a confined node.
    pub(super) fn monitor(&mut self, text: &str) {
        self.add(MONITOR, 0, text.as_bytes());
    }

    /// The encoded notes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn add(&mut self, owner: &str, kind: u32, content: &[u8]) {
        let owner_size = owner.len() + 1;
        for number in [owner_size as u32, content.len() as u32, kind] {
            self.0.extend(number.to_le_bytes());
        }
        self.0.extend(owner.as_bytes());
        self.0.push(0);
        self.pad();
        self.0.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
    }
}

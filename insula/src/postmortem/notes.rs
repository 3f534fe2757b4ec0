//! The notes of a kernel's core file: the registers of each core, and what the kernel tells tools.
//!
//! Source: the kernel's fs/binfmt_elf.c (`NT_PRSTATUS`), include/linux/elfcore.h (`struct
//! elf_prstatus`) and kernel/crash_core.c, which write the same.

use kimage::running::Registers;

/// The owner of the notes that core files of processes have too.
const CORE: &str = "CORE";
/// Registers of a thread, or here of a core.
const NT_PRSTATUS: u32 = 1;
/// The owner, and only kind, of the note with the kernel's own words.
const VMCOREINFO: &str = "VMCOREINFO";
/// Alignment of a note's parts.
const ALIGNMENT: usize = 4;

/// `struct elf_prstatus` of x86-64: its size, and where in it lie the thread's id and the registers.
const PRSTATUS_SIZE: usize = 336;
const PRSTATUS_PID: usize = 32;
const PRSTATUS_REGISTERS: usize = 112;

/// Notes, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<u8>);

impl Notes {
    /// The registers of the next core, in the order of the kernel's numbers, and the id of the
    /// thread that it executes. All zero if they are not known: the notes count the cores.
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

    /// What the kernel tells tools.
    pub(super) fn vmcoreinfo(&mut self, text: &[u8]) {
        self.add(VMCOREINFO, 0, text);
    }

    /// The bytes.
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

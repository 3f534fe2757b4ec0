//! Core files: the state of a program that a signal terminated, for debuggers.
//!
//! Pure: builds the headers and the layout; the content of memory is written elsewhere.
//!
//! Source: core(5) of Linux; `struct elf_prstatus` and `elf_prpsinfo` of its
//! include/linux/elfcore.h as they are on x86-64.

use alloc::vec::Vec;

use insula_bare::Registers;

use crate::model::vma::{PAGE, Protection, Vma, VmaFlags};

const HEADER_SIZE: usize = 64;
const PROGRAM_HEADER_SIZE: usize = 56;
const LOAD: u32 = 1;
const NOTE: u32 = 4;

/// Types of notes.
mod note {
    pub(super) const STATUS: u32 = 1;
    pub(super) const FLOATING: u32 = 2;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const AUXILIARY: u32 = 6;
    pub(super) const EXTENDED: u32 = 0x202;
}
const STATUS_SIZE: usize = 336;
const PROCESS_SIZE: usize = 136;
/// Size of the FXSAVE part of the extended state.
const FLOATING_SIZE: usize = 512;
/// CS and SS of programs.
const CODE_SEGMENT: u64 = 0x33;
const STACK_SEGMENT: u64 = 0x2b;

/// State of a thread when the program was terminated.
#[derive(Clone, Debug, Default)]
pub struct ThreadDump {
    /// Thread id.
    pub id: u64,
    /// Its registers.
    pub registers: Registers,
    /// Bases of FS and GS.
    pub bases: (u64, u64),
    /// Extended state, as XSAVE or FXSAVE wrote it.
    pub extended: Vec<u8>,
}

/// Content of a core file.
#[derive(Clone, Copy, Debug)]
pub struct CoreFile<'a> {
    /// Signal that terminated the program.
    pub signal: u32,
    /// Process id.
    pub pid: u64,
    /// Path of the program.
    pub name: &'a [u8],
    /// Auxiliary vector.
    pub auxiliary: &'a [u8],
    /// Threads; first the one that received the signal.
    pub threads: &'a [ThreadDump],
    /// Memory.
    pub vmas: &'a [Vma],
}

/// A VMA that is written to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpedVma {
    /// The VMA.
    pub vma: Vma,
    /// Its offset in the file.
    pub offset: u64,
}

fn put(bytes: &mut [u8], at: usize, word: &[u8]) {
    bytes[at..at + word.len()].copy_from_slice(word);
}

impl CoreFile<'_> {
    /// Builds the file's head, and the list of VMAs whose content follows. Other VMAs have no
    /// content.
    #[must_use]
    pub fn lay_out(&self) -> (Vec<u8>, Vec<DumpedVma>) {
        let notes = self.notes();
        let headers = HEADER_SIZE + PROGRAM_HEADER_SIZE * (self.vmas.len() + 1);
        let mut offset = ((headers + notes.len()) as u64).next_multiple_of(PAGE);
        let mut bytes = self.header();
        bytes.extend(program_header(
            NOTE,
            4,
            headers as u64,
            (0, 0),
            notes.len() as u64,
        ));
        let mut dumped = Vec::new();
        for &vma in self.vmas {
            let size = vma.end - vma.start;
            // Files are at hand when a core file is read, but not what the program has changed.
            let is_own = vma.is_private_base() && vma.flags.contains(VmaFlags::MAY_BE_DIRTY);
            let is_wanted = is_own || !vma.flags.contains(VmaFlags::BASE);
            let is_wanted = is_wanted && !vma.flags.contains(VmaFlags::DONT_DUMP);
            let file_size = match is_wanted && vma.protection.contains(Protection::READ) {
                true => size,
                false => 0,
            };
            let range = (vma.start, size);
            bytes.extend(program_header(
                LOAD,
                flags(vma.protection),
                offset,
                range,
                file_size,
            ));
            if file_size > 0 {
                dumped.push(DumpedVma { vma, offset });
            }
            offset += file_size;
        }
        bytes.extend(notes);
        (bytes, dumped)
    }

    fn header(&self) -> Vec<u8> {
        const CORE: u16 = 4;
        const X86_64: u16 = 62;
        let mut bytes = alloc::vec![0; HEADER_SIZE];
        put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
        let count = self.vmas.len() as u16 + 1;
        let halves = [
            (16, CORE),
            (18, X86_64),
            (52, HEADER_SIZE as u16),
            (54, PROGRAM_HEADER_SIZE as u16),
            (56, count),
        ];
        for (at, half) in halves {
            put(&mut bytes, at, &half.to_le_bytes());
        }
        put(&mut bytes, 20, &1_u32.to_le_bytes());
        put(&mut bytes, 32, &(HEADER_SIZE as u64).to_le_bytes());
        bytes
    }

    fn notes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (thread, index) in self.threads.iter().zip(0..) {
            add_note(&mut bytes, b"CORE\0", note::STATUS, &self.status(thread));
            if index == 0 {
                add_note(&mut bytes, b"CORE\0", note::PROCESS, &self.process());
                add_note(&mut bytes, b"CORE\0", note::AUXILIARY, self.auxiliary);
            }
            let extended = thread.extended.as_slice();
            if let Some(floating) = extended.get(..FLOATING_SIZE) {
                add_note(&mut bytes, b"CORE\0", note::FLOATING, floating);
            }
            if extended.len() > FLOATING_SIZE {
                let extended = with_components(extended);
                add_note(&mut bytes, b"LINUX\0", note::EXTENDED, &extended);
            }
        }
        bytes
    }

    /// `struct elf_prstatus`.
    fn status(&self, thread: &ThreadDump) -> Vec<u8> {
        let mut bytes = alloc::vec![0; STATUS_SIZE];
        put(&mut bytes, 0, &self.signal.to_le_bytes());
        put(&mut bytes, 12, &(self.signal as u16).to_le_bytes());
        put(&mut bytes, 32, &(thread.id as u32).to_le_bytes());
        for (register, index) in registers(thread).into_iter().zip(0..) {
            put(&mut bytes, 112 + 8 * index, &register.to_le_bytes());
        }
        put(&mut bytes, 328, &1_u32.to_le_bytes());
        bytes
    }

    /// `struct elf_prpsinfo`.
    fn process(&self) -> Vec<u8> {
        let mut bytes = alloc::vec![0; PROCESS_SIZE];
        bytes[1] = b'R';
        put(&mut bytes, 24, &(self.pid as u32).to_le_bytes());
        let last = self.name.rsplit(|&byte| byte == b'/').next();
        let last = last.unwrap_or_default();
        put(&mut bytes, 40, &last[..last.len().min(15)]);
        put(&mut bytes, 56, &self.name[..self.name.len().min(79)]);
        bytes
    }
}

/// Adds the enabled components (XCR0) where debuggers expect them, in the area reserved for
/// software.
fn with_components(extended: &[u8]) -> Vec<u8> {
    const AT_SOFTWARE: usize = 464;
    let mut bytes = extended.to_vec();
    let enabled = insula_bare::ExtendedState::enabled();
    put(&mut bytes, AT_SOFTWARE, &enabled.to_le_bytes());
    bytes
}

/// `struct user_regs_struct`.
fn registers(thread: &ThreadDump) -> [u64; 27] {
    let of = &thread.registers;
    [
        of.r15,
        of.r14,
        of.r13,
        of.r12,
        of.rbp,
        of.rbx,
        of.r11,
        of.r10,
        of.r9,
        of.r8,
        of.rax,
        of.rcx,
        of.rdx,
        of.rsi,
        of.rdi,
        u64::MAX,
        of.rip,
        CODE_SEGMENT,
        of.rflags,
        of.rsp,
        STACK_SEGMENT,
        thread.bases.0,
        thread.bases.1,
        0,
        0,
        0,
        0,
    ]
}

fn flags(protection: Protection) -> u32 {
    let flag = |right, flag| if protection.contains(right) { flag } else { 0 };
    flag(Protection::EXECUTE, 1) | flag(Protection::WRITE, 2) | flag(Protection::READ, 4)
}

fn program_header(
    kind: u32,
    flags: u32,
    offset: u64,
    (address, size): (u64, u64),
    file_size: u64,
) -> [u8; PROGRAM_HEADER_SIZE] {
    let mut bytes = [0; PROGRAM_HEADER_SIZE];
    put(&mut bytes, 0, &kind.to_le_bytes());
    put(&mut bytes, 4, &flags.to_le_bytes());
    let alignment = if kind == LOAD { PAGE } else { 4 };
    for (at, word) in [
        (8, offset),
        (16, address),
        (32, file_size),
        (40, size),
        (48, alignment),
    ] {
        put(&mut bytes, at, &word.to_le_bytes());
    }
    bytes
}

fn add_note(bytes: &mut Vec<u8>, owner: &[u8], kind: u32, content: &[u8]) {
    for word in [owner.len() as u32, content.len() as u32, kind] {
        bytes.extend(word.to_le_bytes());
    }
    for part in [owner, content] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

/// Returns the core file's name according to the base's pattern (core(5)). Patterns that pipe to a
/// program are not supported.
#[must_use]
pub fn file_name(pattern: &[u8], pid: u64, program: &[u8]) -> Vec<u8> {
    let pattern = pattern.strip_suffix(b"\n").unwrap_or(pattern);
    if pattern.is_empty() || pattern.starts_with(b"|") {
        return b"core".to_vec();
    }
    let last = program.rsplit(|&byte| byte == b'/').next();
    let mut name = Vec::new();
    let mut bytes = pattern.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'%' => match bytes.next() {
                Some(b'%') => name.push(b'%'),
                Some(b'p' | b'P' | b'i' | b'I') => name.extend(alloc::format!("{pid}").bytes()),
                Some(b'e' | b'f') => name.extend(last.unwrap_or_default()),
                _ => {}
            },
            byte => name.push(byte),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    #[test]
    fn names_follow_core_pattern() {
        let name = |pattern: &[u8]| file_name(pattern, 42, b"/bin/a.out");
        assert_eq!(name(b"core\n"), b"core");
        assert_eq!(name(b"|/usr/lib/apport %p"), b"core");
        assert_eq!(name(b"/tmp/core.%e.%p%%%t"), b"/tmp/core.a.out.42%");
        assert_eq!(name(b""), b"core");
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    #[test]
    fn the_layout_matches_the_headers() {
        let vma = Vma::own;
        let in_base = |start, more| Vma {
            flags: VmaFlags::BASE | more,
            ..vma(start, start + 0x1000, Protection::READ)
        };
        let vmas = [
            vma(0x1000, 0x3000, Protection::READ),
            vma(0x8000, 0x9000, Protection::empty()),
            vma(0xa000, 0xb000, Protection::READ | Protection::WRITE),
            in_base(0x2_0000, VmaFlags::empty()),
            in_base(0x3_0000, VmaFlags::SHARED),
            in_base(0x4_0000, VmaFlags::MAY_BE_DIRTY),
            in_base(0x5_0000, VmaFlags::MAY_BE_DIRTY | VmaFlags::DONT_DUMP),
        ];
        let registers = Registers {
            rip: 0x1234,
            rsp: 0xa800,
            ..Registers::default()
        };
        let thread = ThreadDump {
            id: 7,
            registers,
            bases: (5, 6),
            extended: vec![1; 512],
        };
        let file = CoreFile {
            signal: 11,
            pid: 7,
            name: b"/bin/a.out",
            auxiliary: &[0; 16],
            threads: &[thread.clone(), ThreadDump { id: 8, ..thread }],
            vmas: &vmas,
        };
        let (head, dumped) = file.lay_out();
        let first = dumped[0].offset;
        assert!(first.is_multiple_of(PAGE) && head.len() as u64 <= first);
        let places: Vec<_> = dumped
            .iter()
            .map(|one| (one.vma.start, one.offset))
            .collect();
        let wanted = [
            (0x1000, first),
            (0xa000, first + 0x2000),
            (0x4_0000, first + 0x3000),
        ];
        assert_eq!(places, wanted);
        // The second program header is that of the first VMA.
        let at = HEADER_SIZE + PROGRAM_HEADER_SIZE;
        let words = [8, 16, 32, 40].map(|word| u64_at(&head, at + word));
        assert_eq!(words, [first, 0x1000, 0x2000, 0x2000]);
        let notes = u64_at(&head, HEADER_SIZE + 8) as usize;
        let status = &head[notes + 20..];
        assert_eq!((status[0], status[32]), (11, 7));
        assert_eq!(u64_at(status, 112 + 8 * 16), 0x1234);
        assert_eq!(u64_at(status, 112 + 8 * 21), 5);
    }
}

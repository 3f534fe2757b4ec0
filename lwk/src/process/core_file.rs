//! A core file: what a program was when a signal ended it, for a debugger.
//!
//! Pure: the bytes before the memory, and where in the file each area of memory goes.
//!
//! Source: core(5) of Linux; `struct elf_prstatus` and `elf_prpsinfo` of its
//! include/linux/elfcore.h as they are on x86-64.

use alloc::vec::Vec;

use insula_bare::Registers;

use super::PAGE;
use super::areas::{Area, AreaFlags, Rights};

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
/// Of the extended registers, those of FXSAVE.
const FLOATING_SIZE: usize = 512;
/// CS and SS of programs.
const CODE_SEGMENT: u64 = 0x33;
const STACK_SEGMENT: u64 = 0x2b;

/// A thread in its last moment.
#[derive(Clone, Debug, Default)]
pub struct LastMoment {
    /// Its id.
    pub id: u64,
    /// Its registers.
    pub registers: Registers,
    /// Bases of FS and GS.
    pub bases: (u64, u64),
    /// Its extended registers, as XSAVE or FXSAVE left them.
    pub extended: Vec<u8>,
}

/// What goes into a core file.
#[derive(Clone, Copy, Debug)]
pub struct CoreFile<'a> {
    /// The signal that ended the program.
    pub signal: u32,
    /// The program's id.
    pub pid: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Its auxiliary vector.
    pub auxiliary: &'a [u8],
    /// Its threads; the one with the signal is the first.
    pub threads: &'a [LastMoment],
    /// Its memory.
    pub areas: &'a [Area],
}

/// An area in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Which.
    pub area: Area,
    /// Where.
    pub offset: u64,
}

fn put(bytes: &mut [u8], at: usize, word: &[u8]) {
    bytes[at..at + word.len()].copy_from_slice(word);
}

impl CoreFile<'_> {
    /// The beginning of the file, and which areas follow where; what is in none of them is zero.
    #[must_use]
    pub fn lay_out(&self) -> (Vec<u8>, Vec<Stored>) {
        let notes = self.notes();
        let headers = HEADER_SIZE + PROGRAM_HEADER_SIZE * (self.areas.len() + 1);
        let mut offset = ((headers + notes.len()) as u64).next_multiple_of(PAGE);
        let mut bytes = self.header();
        bytes.extend(program_header(
            NOTE,
            4,
            headers as u64,
            (0, 0),
            notes.len() as u64,
        ));
        let mut stored = Vec::new();
        for &area in self.areas {
            let size = area.end - area.start;
            let is_wanted = !area.flags.contains(AreaFlags::DONT_DUMP);
            let file_size = match is_wanted && area.rights.contains(Rights::READ) {
                true => size,
                false => 0,
            };
            let range = (area.start, size);
            bytes.extend(program_header(
                LOAD,
                flags(area.rights),
                offset,
                range,
                file_size,
            ));
            if file_size > 0 {
                stored.push(Stored { area, offset });
            }
            offset += file_size;
        }
        bytes.extend(notes);
        (bytes, stored)
    }

    fn header(&self) -> Vec<u8> {
        const CORE: u16 = 4;
        const X86_64: u16 = 62;
        let mut bytes = alloc::vec![0; HEADER_SIZE];
        put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
        let count = self.areas.len() as u16 + 1;
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
    fn status(&self, thread: &LastMoment) -> Vec<u8> {
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

/// Debuggers find in the part that is software's which components there are.
fn with_components(extended: &[u8]) -> Vec<u8> {
    const AT_SOFTWARE: usize = 464;
    let mut bytes = extended.to_vec();
    let enabled = insula_bare::ExtendedState::enabled();
    put(&mut bytes, AT_SOFTWARE, &enabled.to_le_bytes());
    bytes
}

/// `struct user_regs_struct`.
fn registers(thread: &LastMoment) -> [u64; 27] {
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

fn flags(rights: Rights) -> u32 {
    let flag = |right, flag| if rights.contains(right) { flag } else { 0 };
    flag(Rights::EXECUTE, 1) | flag(Rights::WRITE, 2) | flag(Rights::READ, 4)
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

/// The name of a core file by the base's pattern (core(5)), as far as it is of the simple kind: no
/// pattern that starts a program is followed.
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
    fn names_follow_the_pattern() {
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
    fn a_file_is_laid_out_as_its_headers_say() {
        let area = Area::own;
        let areas = [
            area(0x1000, 0x3000, Rights::READ),
            area(0x8000, 0x9000, Rights::empty()),
            area(0xa000, 0xb000, Rights::READ | Rights::WRITE),
        ];
        let registers = Registers {
            rip: 0x1234,
            rsp: 0xa800,
            ..Registers::default()
        };
        let thread = LastMoment {
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
            threads: &[thread.clone(), LastMoment { id: 8, ..thread }],
            areas: &areas,
        };
        let (head, stored) = file.lay_out();
        let first = stored[0].offset;
        assert!(first.is_multiple_of(PAGE) && head.len() as u64 <= first);
        let places: Vec<_> = stored
            .iter()
            .map(|one| (one.area.start, one.offset))
            .collect();
        assert_eq!(places, [(0x1000, first), (0xa000, first + 0x2000)]);
        // The second program header is the first area's.
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

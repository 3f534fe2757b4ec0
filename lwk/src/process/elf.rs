//! What an ELF file says of the program in it. The file is anyone's: everything is checked.
//!
//! Source: System V ABI, chapters 4 and 5, and its AMD64 supplement.

use alloc::vec::Vec;

use super::areas::Rights;
use crate::process::PAGE;

/// Bytes from the beginning of a file that are looked at: header and program headers.
pub const HEAD_SIZE: usize = 4096;

const MAGIC: &[u8; 4] = b"\x7fELF";
/// 64 bits, little endian, version 1.
const IDENTITY: [u8; 3] = [2, 1, 1];
const EXECUTABLE: u16 = 2;
const SHARED: u16 = 3;
const X86_64: u16 = 62;
const PROGRAM_HEADER_SIZE: usize = 56;
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
/// Longest name of an interpreter.
const NAME_MAX: u64 = 4096;
/// End of what a program may ask for.
const ADDRESS_MAX: u64 = 1 << 47;

/// A piece of the file, and where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where in the file.
    pub offset: u64,
    /// Where in memory; with the bias of a program that can lie anywhere added.
    pub address: u64,
    /// Bytes of it in the file.
    pub file_size: u64,
    /// Bytes of it in memory; the rest is zero.
    pub size: u64,
    /// What the program may do there.
    pub rights: Rights,
}

impl Segment {
    /// The pages that it takes.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        (
            self.address & !(PAGE - 1),
            (self.address + self.size).next_multiple_of(PAGE),
        )
    }
}

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whether it can lie anywhere.
    pub movable: bool,
    /// Its first instruction.
    pub entry: u64,
    /// Its pieces, ascending, none in another's pages but for those that share one.
    pub segments: Vec<Segment>,
    /// Where the name of its interpreter is in the file, and its size with the NUL.
    pub interpreter: Option<(u64, u64)>,
    /// Where its program headers lie in memory, if any segment has them; and how many there are.
    pub headers: (u64, u64),
}

/// Why a file is no program; the words are for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAProgram(pub &'static str);

fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let found = bytes.get(offset..).and_then(<[u8]>::first_chunk);
    found.copied().unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(at(bytes, offset))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(at(bytes, offset))
}

impl Program {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    /// [`NotAProgram`].
    pub fn read(head: &[u8]) -> Result<Self, NotAProgram> {
        if head.len() < 64 || !head.starts_with(MAGIC) || head[4..7] != IDENTITY {
            return Err(NotAProgram("it is no ELF file of 64 bits"));
        }
        let kind = u16_at(head, 16);
        if u16_at(head, 18) != X86_64 || !matches!(kind, EXECUTABLE | SHARED) {
            return Err(NotAProgram("it is no program for x86-64"));
        }
        let (offset, count) = (u64_at(head, 32), usize::from(u16_at(head, 56)));
        if usize::from(u16_at(head, 54)) != PROGRAM_HEADER_SIZE || count == 0 {
            return Err(NotAProgram("it has no program headers of a known size"));
        }
        let table = usize::try_from(offset)
            .ok()
            .and_then(|offset| head.get(offset..));
        let table = table.and_then(|table| table.get(..count * PROGRAM_HEADER_SIZE));
        let table = table.ok_or(NotAProgram(
            "its program headers lie too far from its beginning",
        ))?;
        let mut program = Self {
            movable: kind == SHARED,
            entry: u64_at(head, 24),
            segments: Vec::new(),
            interpreter: None,
            headers: (0, count as u64),
        };
        for header in table.chunks_exact(PROGRAM_HEADER_SIZE) {
            program.add(header)?;
        }
        program.check()?;
        program.headers.0 = program.address_of(offset);
        Ok(program)
    }

    fn add(&mut self, header: &[u8]) -> Result<(), NotAProgram> {
        let (offset, address) = (u64_at(header, 8), u64_at(header, 16));
        let (file_size, size) = (u64_at(header, 32), u64_at(header, 40));
        match u32_at(header, 0) {
            LOAD if size > 0 => self.segments.push(Segment {
                offset,
                address,
                file_size,
                size,
                rights: rights(u32_at(header, 4)),
            }),
            INTERPRETER if self.interpreter.is_none() => {
                if !(2..=NAME_MAX).contains(&file_size) {
                    return Err(NotAProgram("its interpreter's name is none"));
                }
                self.interpreter = Some((offset, file_size));
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), NotAProgram> {
        let mut end = 0;
        for segment in &self.segments {
            let fits = segment.file_size <= segment.size
                && segment.address >= end
                && segment.offset % PAGE == segment.address % PAGE
                && segment.offset.checked_add(segment.file_size).is_some();
            end = segment.address.saturating_add(segment.size);
            if !fits || end >= ADDRESS_MAX {
                return Err(NotAProgram("its segments lie where they cannot"));
            }
        }
        match self.segments.is_empty() {
            true => Err(NotAProgram("nothing of it is to be loaded")),
            false => Ok(()),
        }
    }

    /// Where a byte of the file lies in memory; 0 if nowhere.
    fn address_of(&self, offset: u64) -> u64 {
        let holds = |segment: &&Segment| {
            offset
                .checked_sub(segment.offset)
                .is_some_and(|skip| skip < segment.file_size)
        };
        let found = self.segments.iter().find(holds);
        found.map_or(0, |segment| segment.address + (offset - segment.offset))
    }

    /// The pages from the first segment's to the last's.
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        let start = self.segments.first().map_or(0, |segment| segment.pages().0);
        let end = self.segments.last().map_or(0, |segment| segment.pages().1);
        (start, end)
    }

    /// The same program, so much higher.
    #[must_use]
    pub fn moved_by(mut self, bias: u64) -> Self {
        self.entry = self.entry.wrapping_add(bias);
        if self.headers.0 != 0 {
            self.headers.0 = self.headers.0.wrapping_add(bias);
        }
        for segment in &mut self.segments {
            segment.address = segment.address.wrapping_add(bias);
        }
        self
    }
}

fn rights(flags: u32) -> Rights {
    let mut rights = Rights::empty();
    rights.set(Rights::EXECUTE, flags & 1 != 0);
    rights.set(Rights::WRITE, flags & 2 != 0);
    rights.set(Rights::READ, flags & 4 != 0);
    rights
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_test_is_a_program() {
        let file = fs::read("/proc/self/exe").unwrap();
        let program = Program::read(&file[..HEAD_SIZE]).unwrap();
        let (offset, size) = program.interpreter.expect("it is linked dynamically");
        let name = &file[offset as usize..(offset + size) as usize];
        assert!(name.starts_with(b"/lib"), "{name:?}");
        assert!(program.movable && program.headers.0 != 0);
        let entry = program.clone().moved_by(0x1000).entry;
        assert_eq!(entry, program.entry + 0x1000);
        let code = program.segments.iter().find(|segment| {
            segment.rights.contains(Rights::EXECUTE) && segment.pages().0 <= program.entry
        });
        assert!(code.is_some());
    }

    proptest! {
        #[test]
        fn no_file_is_too_odd(
            changes in proptest::collection::vec((0..600_usize, any::<u8>()), 0..40),
            size in 0..HEAD_SIZE,
        ) {
            let file = fs::read("/proc/self/exe").unwrap();
            let mut head = file[..HEAD_SIZE].to_vec();
            for (at, byte) in changes {
                head[at] = byte;
            }
            head.truncate(size.max(64));
            if let Ok(program) = Program::read(&head) {
                let (start, end) = program.span();
                prop_assert!(start < end && end <= ADDRESS_MAX);
            }
        }
    }
}

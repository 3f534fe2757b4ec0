//! Parses ELF files. They are untrusted: everything is checked.
//!
//! Source: System V ABI, chapters 4 and 5, and its AMD64 supplement.

use alloc::vec::Vec;

use crate::model::vma::{PAGE, Protection};

/// Size of the file's head that is read: ELF header and program headers.
pub const HEAD_SIZE: usize = 4096;

const MAGIC: &[u8; 4] = b"\x7fELF";
/// 64-bit, little endian, version 1.
const IDENTITY: [u8; 3] = [2, 1, 1];
const EXECUTABLE: u16 = 2;
const SHARED: u16 = 3;
const X86_64: u16 = 62;
const PROGRAM_HEADER_SIZE: usize = 56;
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
/// Maximum length of the interpreter's path.
const NAME_MAX: u64 = 4096;
/// End of the addresses that a program may ask for.
const ADDRESS_MAX: u64 = 1 << 47;

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Virtual address, with the load bias added.
    pub address: u64,
    /// Size in the file, in bytes.
    pub file_size: u64,
    /// Size in memory, in bytes; the rest is zero.
    pub size: u64,
    /// Protection.
    pub protection: Protection,
}

impl Segment {
    /// Returns its range of pages.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        (
            self.address & !(PAGE - 1),
            (self.address + self.size).next_multiple_of(PAGE),
        )
    }
}

/// Parsed headers of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whether it can be loaded at any address.
    pub is_position_independent: bool,
    /// Entry point.
    pub entry: u64,
    /// Segments, ascending; two may share a page.
    pub segments: Vec<Segment>,
    /// Offset and size (with the NUL) of the interpreter's path in the file.
    pub interpreter: Option<(u64, u64)>,
    /// Address of the program headers in memory, 0 if no segment contains them; and their number.
    pub program_headers: (u64, u64),
}

/// Reason why a file is not executable, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatError(pub &'static str);

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
    /// Parses the head of a file.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn parse(head: &[u8]) -> Result<Self, FormatError> {
        if head.len() < 64 || !head.starts_with(MAGIC) || head[4..7] != IDENTITY {
            return Err(FormatError("not a 64-bit ELF file"));
        }
        let kind = u16_at(head, 16);
        if u16_at(head, 18) != X86_64 || !matches!(kind, EXECUTABLE | SHARED) {
            return Err(FormatError("not a program for x86-64"));
        }
        let (offset, count) = (u64_at(head, 32), usize::from(u16_at(head, 56)));
        if usize::from(u16_at(head, 54)) != PROGRAM_HEADER_SIZE || count == 0 {
            return Err(FormatError(
                "program headers are missing or of unknown size",
            ));
        }
        let table = usize::try_from(offset)
            .ok()
            .and_then(|offset| head.get(offset..));
        let table = table.and_then(|table| table.get(..count * PROGRAM_HEADER_SIZE));
        let table = table.ok_or(FormatError(
            "program headers are too far from the start of the file",
        ))?;
        let mut program = Self {
            is_position_independent: kind == SHARED,
            entry: u64_at(head, 24),
            segments: Vec::new(),
            interpreter: None,
            program_headers: (0, count as u64),
        };
        for header in table.chunks_exact(PROGRAM_HEADER_SIZE) {
            program.add_header(header)?;
        }
        program.check_segments()?;
        program.program_headers.0 = program.address_of(offset);
        Ok(program)
    }

    fn add_header(&mut self, header: &[u8]) -> Result<(), FormatError> {
        let (offset, address) = (u64_at(header, 8), u64_at(header, 16));
        let (file_size, size) = (u64_at(header, 32), u64_at(header, 40));
        match u32_at(header, 0) {
            LOAD if size > 0 => self.segments.push(Segment {
                offset,
                address,
                file_size,
                size,
                protection: protection(u32_at(header, 4)),
            }),
            INTERPRETER if self.interpreter.is_none() => {
                if !(2..=NAME_MAX).contains(&file_size) {
                    return Err(FormatError("the path of its interpreter is invalid"));
                }
                self.interpreter = Some((offset, file_size));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_segments(&self) -> Result<(), FormatError> {
        let mut end = 0;
        for segment in &self.segments {
            let fits = segment.file_size <= segment.size
                && segment.address >= end
                && segment.offset % PAGE == segment.address % PAGE
                && segment.offset.checked_add(segment.file_size).is_some();
            end = segment.address.saturating_add(segment.size);
            if !fits || end >= ADDRESS_MAX {
                return Err(FormatError("invalid segments"));
            }
        }
        match self.segments.is_empty() {
            true => Err(FormatError("no loadable segments")),
            false => Ok(()),
        }
    }

    /// Returns the address of a byte of the file; 0 if no segment contains it.
    fn address_of(&self, offset: u64) -> u64 {
        let holds = |segment: &&Segment| {
            offset
                .checked_sub(segment.offset)
                .is_some_and(|skip| skip < segment.file_size)
        };
        let found = self.segments.iter().find(holds);
        found.map_or(0, |segment| segment.address + (offset - segment.offset))
    }

    /// Returns the range of pages from the first to the last segment.
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        let start = self.segments.first().map_or(0, |segment| segment.pages().0);
        let end = self.segments.last().map_or(0, |segment| segment.pages().1);
        (start, end)
    }

    /// Adds a load bias to all addresses.
    #[must_use]
    pub fn relocated_by(mut self, bias: u64) -> Self {
        self.entry = self.entry.wrapping_add(bias);
        if self.program_headers.0 != 0 {
            self.program_headers.0 = self.program_headers.0.wrapping_add(bias);
        }
        for segment in &mut self.segments {
            segment.address = segment.address.wrapping_add(bias);
        }
        self
    }
}

fn protection(flags: u32) -> Protection {
    let mut protection = Protection::empty();
    protection.set(Protection::EXECUTE, flags & 1 != 0);
    protection.set(Protection::WRITE, flags & 2 != 0);
    protection.set(Protection::READ, flags & 4 != 0);
    protection
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_test_binary_is_parsed() {
        let file = fs::read("/proc/self/exe").unwrap();
        let program = Program::parse(&file[..HEAD_SIZE]).unwrap();
        let (offset, size) = program.interpreter.expect("a dynamically linked test");
        let name = &file[offset as usize..(offset + size) as usize];
        assert!(name.starts_with(b"/lib"), "{name:?}");
        assert!(program.is_position_independent && program.program_headers.0 != 0);
        let entry = program.clone().relocated_by(0x1000).entry;
        assert_eq!(entry, program.entry + 0x1000);
        let code = program.segments.iter().find(|segment| {
            segment.protection.contains(Protection::EXECUTE) && segment.pages().0 <= program.entry
        });
        assert!(code.is_some());
    }

    proptest! {
        #[test]
        fn malformed_files_do_not_panic(
            changes in proptest::collection::vec((0..600_usize, any::<u8>()), 0..40),
            size in 0..HEAD_SIZE,
        ) {
            let file = fs::read("/proc/self/exe").unwrap();
            let mut head = file[..HEAD_SIZE].to_vec();
            for (at, byte) in changes {
                head[at] = byte;
            }
            head.truncate(size.max(64));
            if let Ok(program) = Program::parse(&head) {
                let (start, end) = program.span();
                prop_assert!(start < end && end <= ADDRESS_MAX);
            }
        }
    }
}

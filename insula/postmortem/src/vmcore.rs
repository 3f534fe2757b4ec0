//! The core file: ELF headers, notes, and memory, with holes for pages of zeros.
//!
//! It has the structure of the kernel's own `/proc/vmcore` (fs/proc/vmcore.c): one segment for the
//! kernel's image at its run-time virtual addresses, and one for each range of memory, with its
//! physical addresses as the node sees them and the virtual ones of the kernel's direct map. The
//! image's bytes are in the file once, in the range that contains them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use kimage::{PhysicalMemory, ReadError};
use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, ELFOSABI_NONE, EM_X86_64, ET_CORE, EV_CURRENT, FileFlags,
    FileHeader64, Ident, PF_R, PF_W, PF_X, PN_XNUM, PT_LOAD, PT_NOTE, ProgramFlags,
    ProgramHeader64, ProgramType, SHN_UNDEF,
};
use object::endian::{LittleEndian as LE, U16, U32, U64};
use object::pod::bytes_of;

/// Granularity of holes in bytes.
const PAGE: usize = 4096;
/// Bytes copied at a time.
const STEP: usize = 1 << 20;
/// Alignment of memory in the file, so that holes are whole blocks.
const DATA_ALIGNMENT: u64 = PAGE as u64;

/// Why a dump was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The file could not be written.
    #[error("{0}")]
    File(#[from] io::Error),
    /// The node's memory could not be read.
    #[error(transparent)]
    Memory(#[from] ReadError),
    /// It is larger than the limit.
    #[error("it takes more than the {0} bytes that dumps may take")]
    TooLarge(u64),
    /// There are more ranges than the format can number.
    #[error("the memory has {0} separate ranges, more than a core file can have")]
    TooManyRanges(usize),
}

/// A segment of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    virtual_address: u64,
    physical_address: u64,
    file_offset: u64,
    size: u64,
}

/// Contents of the core file of a node's memory.
#[derive(Debug)]
pub(super) struct Vmcore {
    notes: Vec<u8>,
    /// Ranges of memory, ascending, each with its offset in the file.
    ranges: Vec<(Range<u64>, u64)>,
    segments: Vec<Segment>,
    size: u64,
}

/// Memory map of the node's kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelMap {
    /// Start of the direct map: the virtual address of physical address 0.
    pub(super) direct_map: u64,
    /// Virtual addresses of the image, and the physical address of its start.
    pub(super) image: Option<(Range<u64>, u64)>,
}

impl Vmcore {
    /// Lays out the file.
    pub(super) fn plan(
        ranges: Vec<Range<u64>>,
        map: &KernelMap,
        notes: &[u8],
    ) -> Result<Self, WriteError> {
        let merged = merged(ranges);
        // One segment for the notes, one for the image, and one for each range.
        let count = merged.len() + 2;
        if count >= usize::from(PN_XNUM) {
            return Err(WriteError::TooManyRanges(merged.len()));
        }
        let headers = size_of::<FileHeader64<LE>>() + count * size_of::<ProgramHeader64<LE>>();
        let mut end = ((headers + notes.len()) as u64).next_multiple_of(DATA_ALIGNMENT);
        let mut ranges = Vec::new();
        for range in merged {
            let size = range.end - range.start;
            ranges.push((range, end));
            end += size;
        }
        let image = map
            .image
            .as_ref()
            .and_then(|image| image_segment(image, &ranges));
        let all = ranges.iter().map(|(range, file_offset)| Segment {
            virtual_address: map.direct_map.wrapping_add(range.start),
            physical_address: range.start,
            file_offset: *file_offset,
            size: range.end - range.start,
        });
        Ok(Self {
            notes: notes.to_vec(),
            segments: image.into_iter().chain(all).collect(),
            ranges,
            size: end,
        })
    }

    /// Size of the file in bytes, holes included.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Writes the file, one MiB at a time. Returns the bytes of memory that are no holes.
    pub(super) fn write<M: PhysicalMemory + ?Sized>(
        &self,
        memory: &M,
        file: &File,
        written_max: u64,
    ) -> Result<u64, WriteError> {
        file.write_all_at(&self.headers(), 0)?;
        let mut writer = Sparse {
            file,
            written: 0,
            written_max,
        };
        let mut buffer = vec![0; STEP];
        for (range, file_offset) in &self.ranges {
            for address in range.clone().step_by(STEP) {
                let size = usize::try_from(range.end - address).map_or(STEP, |left| left.min(STEP));
                memory.read(address, &mut buffer[..size])?;
                writer.write(&buffer[..size], file_offset + (address - range.start))?;
            }
        }
        file.set_len(self.size)?;
        Ok(writer.written)
    }

    /// Headers and notes: everything before the memory.
    fn headers(&self) -> Vec<u8> {
        let count = self.segments.len() + 1;
        let mut bytes = bytes_of(&file_header(count as u16)).to_vec();
        let notes_offset = bytes.len() + count * size_of::<ProgramHeader64<LE>>();
        let notes = Segment {
            virtual_address: 0,
            physical_address: 0,
            file_offset: notes_offset as u64,
            size: self.notes.len() as u64,
        };
        bytes.extend(bytes_of(&program_header(PT_NOTE, PF_R, &notes)));
        for segment in &self.segments {
            bytes.extend(bytes_of(&program_header(
                PT_LOAD,
                PF_R | PF_W | PF_X,
                segment,
            )));
        }
        bytes.extend(&self.notes);
        bytes
    }
}

/// Writer that leaves holes for zeros.
struct Sparse<'a> {
    file: &'a File,
    written: u64,
    written_max: u64,
}

impl Sparse<'_> {
    fn write(&mut self, bytes: &[u8], at: u64) -> Result<(), WriteError> {
        let pages: Vec<&[u8]> = bytes.chunks(PAGE).collect();
        let mut offset = 0;
        for run in pages.chunk_by(|left, right| is_zero(left) == is_zero(right)) {
            let size: usize = run.iter().map(|page| page.len()).sum();
            if !is_zero(run[0]) {
                self.written += size as u64;
                if self.written > self.written_max {
                    return Err(WriteError::TooLarge(self.written_max));
                }
                self.file
                    .write_all_at(&bytes[offset..offset + size], at + offset as u64)?;
            }
            offset += size;
        }
        Ok(())
    }
}

fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<8>();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

/// The ranges in ascending order, adjacent ones merged.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The segment of the kernel's image, if it is within one range.
fn image_segment(
    (addresses, physical): &(Range<u64>, u64),
    ranges: &[(Range<u64>, u64)],
) -> Option<Segment> {
    let size = addresses.end.checked_sub(addresses.start)?;
    let end = physical.checked_add(size)?;
    let holds = |range: &Range<u64>| range.start <= *physical && end <= range.end;
    let (range, file_offset) = ranges.iter().find(|(range, _)| holds(range))?;
    Some(Segment {
        virtual_address: addresses.start,
        physical_address: *physical,
        file_offset: file_offset + (physical - range.start),
        size,
    })
}

fn file_header(segments: u16) -> FileHeader64<LE> {
    let size = |bytes: usize| U16::new(LE, bytes as u16);
    FileHeader64 {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS64,
            data: ELFDATA2LSB,
            version: EV_CURRENT,
            os_abi: ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(LE, ET_CORE),
        e_machine: U16::new(LE, EM_X86_64),
        e_version: U32::new(LE, EV_CURRENT.0.into()),
        e_entry: U64::new(LE, 0),
        e_phoff: U64::new(LE, size_of::<FileHeader64<LE>>() as u64),
        e_shoff: U64::new(LE, 0),
        e_flags: U32::new(LE, FileFlags(0)),
        e_ehsize: size(size_of::<FileHeader64<LE>>()),
        e_phentsize: size(size_of::<ProgramHeader64<LE>>()),
        e_phnum: U16::new(LE, segments),
        e_shentsize: size(0),
        e_shnum: size(0),
        e_shstrndx: U16::new(LE, SHN_UNDEF),
    }
}

fn program_header(
    kind: ProgramType,
    flags: ProgramFlags,
    segment: &Segment,
) -> ProgramHeader64<LE> {
    ProgramHeader64 {
        p_type: U32::new(LE, kind),
        p_flags: U32::new(LE, flags),
        p_offset: U64::new(LE, segment.file_offset),
        p_vaddr: U64::new(LE, segment.virtual_address),
        p_paddr: U64::new(LE, segment.physical_address),
        p_filesz: U64::new(LE, segment.size),
        p_memsz: U64::new(LE, segment.size),
        p_align: U64::new(LE, 0),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use kimage::running::Registers;
    use object::elf::{FileHeader64, NT_PRSTATUS, NoteType};
    use object::read::elf::{FileHeader, ProgramHeader};
    use proptest::prelude::*;

    use super::super::notes::Notes;
    use super::*;

    /// Chunks of memory with contents.
    #[derive(Clone, Debug)]
    struct Memory(Vec<(u64, Vec<u8>)>);

    impl PhysicalMemory for Memory {
        fn ranges(&self) -> Vec<Range<u64>> {
            let range = |(start, bytes): &(u64, Vec<u8>)| *start..start + bytes.len() as u64;
            self.0.iter().map(range).collect()
        }

        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
            let size = into.len();
            for (index, byte) in into.iter_mut().enumerate() {
                let at = address + index as u64;
                let mut chunks = self.0.iter();
                let holds = chunks.find_map(|(start, bytes)| {
                    bytes.get(usize::try_from(at.checked_sub(*start)?).ok()?)
                });
                *byte = *holds.ok_or(ReadError { address, size })?;
            }
            Ok(())
        }
    }

    fn notes() -> Notes {
        let mut notes = Notes::default();
        let registers = Registers {
            rip: 0xffff_ffff_8100_0042,
            ..Registers::default()
        };
        notes.processor(7, Some(&registers));
        notes.processor(0, None);
        notes.vmcoreinfo(b"OSRELEASE=6.1\nPAGESIZE=4096\n");
        notes.monitor("port 0x1");
        notes
    }

    /// Writes a core file; returns its bytes, and its size on disk.
    fn written(memory: &Memory, map: &KernelMap) -> (Vec<u8>, u64) {
        let plan = Vmcore::plan(memory.ranges(), map, notes().bytes()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        plan.write(memory, file.as_file(), u64::MAX).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!(bytes.len() as u64, plan.size());
        (bytes, file.as_file().metadata().unwrap().blocks() * 512)
    }

    /// The segments: virtual and physical address, and content.
    fn segments(core: &[u8]) -> Vec<(u64, u64, &[u8])> {
        let header = FileHeader64::<LE>::parse(core).unwrap();
        assert_eq!(header.e_type.get(LE), ET_CORE);
        let all = header.program_headers(LE, core).unwrap().iter();
        let loaded = all.filter(|program| program.p_type(LE) == PT_LOAD);
        loaded
            .map(|program| {
                let content = program.data(LE, core).unwrap();
                (program.p_vaddr(LE), program.p_paddr(LE), content)
            })
            .collect()
    }

    #[test]
    fn notes_are_as_the_kernels_own() {
        let memory = Memory(vec![(0x1000, vec![1; PAGE])]);
        let (core, _) = written(&memory, &KernelMap::default());
        let header = FileHeader64::<LE>::parse(&*core).unwrap();
        let programs = header.program_headers(LE, &*core).unwrap();
        let mut notes = programs[0].notes(LE, &*core).unwrap().unwrap();
        for (thread, rip) in [(7_u32, 0xffff_ffff_8100_0042_u64), (0, 0)] {
            let note = notes.next().unwrap().unwrap();
            assert_eq!((note.name(), note.n_type(LE)), (&b"CORE"[..], NT_PRSTATUS));
            let status = note.desc();
            assert_eq!(status.len(), 336);
            assert_eq!(status[32..36], thread.to_le_bytes());
            // `pr_reg[16]` is the instruction pointer.
            assert_eq!(status[112 + 8 * 16..][..8], rip.to_le_bytes());
        }
        let note = notes.next().unwrap().unwrap();
        assert_eq!(
            (note.name(), note.n_type(LE)),
            (&b"VMCOREINFO"[..], NoteType(0))
        );
        assert!(note.desc().starts_with(b"OSRELEASE=6.1\n"));
        let note = notes.next().unwrap().unwrap();
        assert_eq!(
            (note.name(), note.desc()),
            (&b"INSULA-MONITOR"[..], &b"port 0x1"[..])
        );
        assert!(notes.next().unwrap().is_none());
    }

    #[test]
    fn the_image_has_a_segment_at_its_own_addresses() {
        let memory = Memory(vec![(
            0x10_0000,
            (0..=255).cycle().take(16 * PAGE).collect(),
        )]);
        let image = 0xffff_ffff_9100_0000..0xffff_ffff_9100_2000;
        let map = KernelMap {
            direct_map: 0xffff_9a80_4000_0000,
            image: Some((image, 0x10_3000)),
        };
        let (core, _) = written(&memory, &map);
        let segments = segments(&core);
        let bytes = &memory.0[0].1;
        assert_eq!(segments[0].0, 0xffff_ffff_9100_0000);
        assert_eq!(segments[0].1, 0x10_3000);
        assert_eq!(segments[0].2, &bytes[0x3000..0x5000]);
        assert_eq!(segments[1].0, 0xffff_9a80_4010_0000);
        assert_eq!(segments[1].2, &bytes[..]);
        assert_eq!(segments.len(), 2);
    }

    #[test]
    fn zeros_take_no_space_and_the_limit_is_kept() {
        let mut bytes = vec![0; 4 << 20];
        bytes[3 << 20] = 1;
        let memory = Memory(vec![(0x10_0000, bytes)]);
        let (core, disk_bytes) = written(&memory, &KernelMap::default());
        assert!(core.len() > 4 << 20);
        assert!(disk_bytes <= 64 << 10, "{disk_bytes}");
        let plan = Vmcore::plan(memory.ranges(), &KernelMap::default(), &[]).unwrap();
        let file = tempfile::tempfile().unwrap();
        let refused = plan.write(&memory, &file, PAGE as u64 - 1);
        assert!(matches!(refused, Err(WriteError::TooLarge(4095))));
    }

    #[test]
    fn more_ranges_than_can_be_numbered_are_refused() {
        let ranges = (0..70_000_u64).map(|index| index * 0x2000..index * 0x2000 + 0x1000);
        let refused = Vmcore::plan(ranges.collect(), &KernelMap::default(), &[]);
        assert!(matches!(refused, Err(WriteError::TooManyRanges(70_000))));
    }

    /// Chunks without overlap, in any order, some of them adjacent, each page zero or not.
    fn chunks() -> impl Strategy<Value = Memory> {
        let page = prop_oneof![Just(0_u8), 1..=255_u8];
        let chunk = (0..3_u64, prop::collection::vec(page, 1..6));
        prop::collection::vec(chunk, 1..6)
            .prop_map(|chunks| {
                let mut next = 0x1_0000;
                let place = |(gap, pages): (u64, Vec<u8>)| {
                    let start = next + gap * PAGE as u64;
                    let bytes: Vec<u8> = pages.iter().flat_map(|&byte| vec![byte; PAGE]).collect();
                    next = start + bytes.len() as u64;
                    (start, bytes)
                };
                chunks.into_iter().map(place).collect::<Vec<_>>()
            })
            .prop_shuffle()
            .prop_map(Memory)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_byte_is_where_its_segment_says(memory in chunks()) {
            let direct_map = 0xffff_8880_0000_0000;
            let (core, _) = written(&memory, &KernelMap { direct_map, image: None });
            let segments = segments(&core);
            let total: usize = memory.0.iter().map(|(_, bytes)| bytes.len()).sum();
            let held: usize = segments.iter().map(|(_, _, content)| content.len()).sum();
            prop_assert_eq!(total, held);
            for (start, bytes) in &memory.0 {
                let holds = segments.iter().find(|(_, physical, content)| {
                    physical <= start && start + bytes.len() as u64 <= physical + content.len() as u64
                });
                let (address, physical, content) = holds.unwrap();
                prop_assert_eq!(*address, direct_map + physical);
                let skip = (start - physical) as usize;
                prop_assert_eq!(&content[skip..skip + bytes.len()], &bytes[..]);
            }
        }
    }
}

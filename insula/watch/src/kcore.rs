//! Memory of the base's kernel, from `/proc/kcore`.

use crate::watched::WatchError;
use kimage::{PhysicalMemory, ReadError};
use object::LittleEndian as LE;
use object::elf::{FileHeader64, PT_LOAD, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of the headers: more than a machine has ranges of memory.
const HEADERS_SIZE: usize = 1 << 20;
/// Size of a page, in bytes.
const PAGE: u64 = 4096;
/// `p_paddr` of what has no physical address (fs/proc/kcore.c).
const NOWHERE: u64 = u64::MAX;
/// `__START_KERNEL_map`: the image is above.
const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// `/proc/kcore`: the memory as an ELF core file that is made while it is read.
///
/// Each read is a system call, and a watcher reads many words of the same pages. So single words come
/// from pages that are kept until [`refresh`](Self::refresh).
#[derive(Debug)]
pub(crate) struct Kcore {
    file: File,
    segments: Vec<Segment>,
    /// By physical address.
    pages: RefCell<HashMap<u64, Box<[u8]>>>,
    /// Where the kernel's image is, physically.
    pub(crate) image: Image,
}

/// A range of physical memory.
#[derive(Debug, Clone, Copy)]
struct Segment {
    physical: u64,
    size: u64,
    /// Offset in the file.
    offset: u64,
}

/// Place of the kernel's image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    /// Physical address of `_text`.
    pub(crate) physical: u64,
    /// Its virtual address.
    pub(crate) address: u64,
}

impl Kcore {
    /// Opens it.
    pub(crate) fn open(path: &Path) -> Result<Self, WatchError> {
        let unreadable = |source| WatchError::Memory {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        let mut headers = vec![0; HEADERS_SIZE];
        let size = file.read_at(&mut headers, 0).map_err(unreadable)?;
        headers.truncate(size);
        let programs = programs(&headers)
            .ok_or_else(|| unreadable(io::Error::from(io::ErrorKind::InvalidData)))?;
        let loaded = programs
            .iter()
            .filter(|one| one.p_type(LE) == PT_LOAD && one.p_paddr(LE) != NOWHERE);
        let (text, ram): (Vec<&ProgramHeader64<LE>>, Vec<_>) =
            loaded.partition(|one| one.p_vaddr(LE) >= START_KERNEL_MAP);
        let text = text.first().ok_or(WatchError::NoKernel)?;
        Ok(Self {
            image: Image {
                physical: text.p_paddr(LE),
                address: text.p_vaddr(LE),
            },
            segments: ram.iter().map(|one| Segment::of(one)).collect(),
            pages: RefCell::default(),
            file,
        })
    }

    /// Forgets what was read.
    pub(crate) fn refresh(&self) {
        self.pages.borrow_mut().clear();
    }

    /// Reads from the file; all of it must be in one segment.
    fn read_file(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let size = into.len() as u64;
        let segment = self.segments.iter().find(|one| {
            let inside = address.checked_sub(one.physical);
            inside.is_some_and(|inside| inside.saturating_add(size) <= one.size)
        })?;
        let offset = segment.offset + (address - segment.physical);
        self.file.read_exact_at(into, offset).ok()
    }

    /// Reads bytes of one page.
    fn read_page(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let start = address & !(PAGE - 1);
        let mut pages = self.pages.borrow_mut();
        let page = match pages.get(&start) {
            Some(page) => page,
            None => {
                let mut bytes = vec![0; PAGE as usize].into_boxed_slice();
                self.read_file(start, &mut bytes)?;
                pages.entry(start).or_insert(bytes)
            }
        };
        let at = (address - start) as usize;
        into.copy_from_slice(page.get(at..at + into.len())?);
        Some(())
    }
}

impl Segment {
    fn of(program: &ProgramHeader64<LE>) -> Self {
        let (offset, size) = program.file_range(LE);
        Self {
            physical: program.p_paddr(LE),
            size,
            offset,
        }
    }
}

impl PhysicalMemory for Kcore {
    fn ranges(&self) -> Vec<Range<u64>> {
        let range = |one: &Segment| one.physical..one.physical + one.size;
        self.segments.iter().map(range).collect()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let size = into.len();
        let inside = address % PAGE + size as u64 <= PAGE;
        let read = match inside && size < PAGE as usize {
            true => self.read_page(address, into),
            false => self.read_file(address, into),
        };
        read.ok_or(ReadError { address, size })
    }
}

fn programs(headers: &[u8]) -> Option<&[ProgramHeader64<LE>]> {
    let header = FileHeader64::<LE>::parse(headers).ok()?;
    header.program_headers(LE, headers).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/proc/kcore";

    /// What can be read of it depends on the machine; where it is readable, so are its headers.
    #[test]
    fn of_this_machine_the_image_is_in_its_memory() {
        let memory = match Kcore::open(Path::new(FILE)) {
            Ok(memory) => memory,
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        let image = memory.image.physical;
        let ranges = memory.ranges();
        assert!(
            ranges.iter().any(|range| range.contains(&image)),
            "{ranges:x?}"
        );
    }

    #[test]
    fn what_is_no_core_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kcore");
        std::fs::write(&path, "no").unwrap();
        assert!(matches!(Kcore::open(&path), Err(WatchError::Memory { .. })));
    }
}

//! The ELF file `vmlinux`: its segments, its sections, and what a loader needs to know.
//!
//! In its program headers (arch/x86/kernel/vmlinux.lds.S) `p_vaddr` is the link address, in the top
//! 2 GiB, and `p_paddr` the preferred physical address; `e_entry` is the physical address of
//! `startup_64`. The code there detects its actual address, which must be a multiple of 2 MiB
//! (`__startup_64`, arch/x86/kernel/head64.c).

use crate::bzimage::{self, BOOT_FLAG, LOADED_HIGH, MAGIC, SETUP_HEADER};
use crate::error::ImageError;
use crate::loadable::{Format, Loadable, Segment};
use crate::part::{leading_release, part};
use memchr::memmem;
use object::LittleEndian as LE;
use object::elf::{
    ELFMAG, EM_X86_64, FileHeader64, PT_LOAD, ProgramHeader64, SHT_SYMTAB, SectionHeader64, Sym64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};

/// Alignment of the load address that `__startup_64` requires.
const LARGE_PAGE: u64 = 2 << 20;
/// `KERNEL_IMAGE_SIZE` of arch/x86/include/asm/page_64_types.h: no kernel is larger.
pub(crate) const KERNEL_IMAGE_SIZE: u64 = 1 << 30;
/// `__START_KERNEL_map`: kernels are linked above this address.
pub(crate) const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// Limit on segments: x86-64 kernels have 4.
const SEGMENTS_MAX: usize = 32;
/// Symbol that identifies our lightweight kernel: its banner.
pub(crate) const LWK_BANNER: &str = "lwk_banner";
/// Prefixes of banners: `linux_banner` of init/version-timestamp.c, and those of our lightweight
/// kernel and of the monitor of confined nodes.
const BANNERS: [&[u8]; 3] = [
    b"Linux version ",
    b"Insula LWK version ",
    b"Insula monitor version ",
];

type Header = FileHeader64<LE>;
type Program = ProgramHeader64<LE>;

/// Whether `file` starts like an ELF file.
pub(crate) fn is_elf(file: &[u8]) -> bool {
    file.starts_with(&ELFMAG)
}

/// An ELF file that is a kernel by its headers.
pub(crate) struct Vmlinux<'a> {
    file: &'a [u8],
    header: &'a Header,
    /// Its loaded segments, at least one of them in the kernel's part of the address space.
    programs: Vec<&'a Program>,
}

impl<'a> Vmlinux<'a> {
    /// Reads the headers.
    pub(crate) fn parse(file: &'a [u8]) -> Result<Self, ImageError> {
        let header = Header::parse(file).map_err(|_| ImageError::NotAKernel)?;
        if !header.is_little_endian() || header.e_machine(LE) != EM_X86_64 {
            return Err(ImageError::NotAKernel);
        }
        let all = header.program_headers(LE, file)?.iter();
        let programs: Vec<_> = all
            .filter(|program| program.p_type(LE) == PT_LOAD)
            .collect();
        if !programs
            .iter()
            .any(|program| program.p_vaddr(LE) >= START_KERNEL_MAP)
        {
            return Err(ImageError::NotAKernel);
        }
        if programs.len() > SEGMENTS_MAX {
            return Err(ImageError::Malformed {
                what: "it has too many segments",
            });
        }
        Ok(Self {
            file,
            header,
            programs,
        })
    }

    /// Contents of each segment in the file, with the link address of its first byte.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (u64, &'a [u8])> {
        let content = |program: &&Program| {
            let (offset, size) = program.file_range(LE);
            let bytes = part(self.file, "segment", offset, size).ok()?;
            Some((program.p_vaddr(LE), bytes))
        };
        self.programs.iter().filter_map(content)
    }

    /// Bytes in the file from link address `address` to the end of its segment.
    pub(crate) fn bytes_from(&self, address: u64) -> Option<&'a [u8]> {
        self.contents().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(start)?).ok()?;
            bytes.get(offset..).filter(|rest| !rest.is_empty())
        })
    }

    /// The content of the section `name`.
    pub(crate) fn section(&self, name: &str) -> Option<&'a [u8]> {
        let sections = self.header.sections(LE, self.file).ok()?;
        let (_, section) = sections.section_by_name(LE, name.as_bytes())?;
        section.data(LE, self.file).ok()
    }

    /// Name, link address and content of each section that has content.
    pub(crate) fn sections(&self) -> impl Iterator<Item = (&'a str, u64, &'a [u8])> {
        let sections = self.header.sections(LE, self.file).ok();
        let file = self.file;
        sections.into_iter().flat_map(move |sections| {
            let named = move |section: &'a SectionHeader64<LE>| {
                let name = sections.section_name(LE, section).ok()?;
                let name = str::from_utf8(name).ok()?;
                Some((name, section.sh_addr(LE), section.data(LE, file).ok()?))
            };
            sections.iter().filter_map(named)
        })
    }

    /// Offset of the end of the ELF file's own bytes: what a bzImage's payload has behind it is for
    /// the decompressor.
    pub(crate) fn end(&self) -> u64 {
        let headers = u64::from(self.header.e_shnum(LE)) * size_of::<SectionHeader64<LE>>() as u64;
        let headers_end = self.header.e_shoff(LE).saturating_add(headers);
        let ends = self.programs.iter().map(|program| {
            let (offset, size) = program.file_range(LE);
            offset.saturating_add(size)
        });
        ends.max().unwrap_or_default().max(headers_end)
    }

    /// The link address of the symbol `name`, if the file has a symbol table with it.
    pub(crate) fn symbol(&self, name: &str) -> Option<u64> {
        let sections = self.header.sections(LE, self.file).ok()?;
        let symbols = sections.symbols(LE, self.file, SHT_SYMTAB).ok()?;
        let named = |symbol: &&Sym64<LE>| symbol.name(LE, symbols.strings()) == Ok(name.as_bytes());
        symbols.iter().find(named).map(|symbol| symbol.st_value(LE))
    }

    /// What a loader needs to know.
    fn loadable(&self) -> Result<Loadable, ImageError> {
        let start_of = |program: &&Program| program.p_paddr(LE);
        let end_of = |program: &&Program| program.p_paddr(LE).saturating_add(program.p_memsz(LE));
        let base = self.programs.iter().map(start_of).min().unwrap_or_default();
        let footprint = self.programs.iter().map(end_of).max().unwrap_or_default() - base;
        if footprint > KERNEL_IMAGE_SIZE || !base.is_multiple_of(LARGE_PAGE) {
            return Err(ImageError::Malformed {
                what: "its segments are not at a kernel's addresses",
            });
        }
        let entry = self.header.e_entry(LE);
        if !self
            .programs
            .iter()
            .any(|program| holds_entry(program, entry))
        {
            return Err(ImageError::Malformed {
                what: "its entry point is outside of its code",
            });
        }
        Ok(Loadable {
            format: match self.symbol(LWK_BANNER) {
                Some(_) => Format::Lwk,
                None => Format::Elf,
            },
            release: release(self.file)?,
            setup_header: setup_header(base, footprint),
            entry_offset: entry - base,
            alignment: LARGE_PAGE,
            footprint,
            segments: self.segments(base)?,
        })
    }

    /// The segments to copy, checked to be in the file and not to overlap.
    fn segments(&self, base: u64) -> Result<Vec<Segment>, ImageError> {
        let mut segments = Vec::new();
        for program in &self.programs {
            let (file_offset, size) = program.file_range(LE);
            part(self.file, "segment", file_offset, size)?;
            if size > program.p_memsz(LE) {
                return Err(ImageError::Malformed {
                    what: "a segment is larger in the file than in memory",
                });
            }
            if size > 0 {
                segments.push(Segment {
                    file_offset,
                    load_offset: program.p_paddr(LE) - base,
                    size,
                });
            }
        }
        segments.sort_by_key(|segment| segment.load_offset);
        if segments
            .windows(2)
            .any(|pair| pair[0].load_offset + pair[0].size > pair[1].load_offset)
        {
            return Err(ImageError::Malformed {
                what: "its segments overlap",
            });
        }
        Ok(segments)
    }
}

/// What a loader needs to know of the ELF `vmlinux` in `file`.
pub(crate) fn inspect(file: &[u8]) -> Result<Loadable, ImageError> {
    Vmlinux::parse(file)?.loadable()
}

/// Whether this segment contains the code at physical address `entry`, in bytes from the file.
fn holds_entry(program: &Program, entry: u64) -> bool {
    let offset = entry.checked_sub(program.p_paddr(LE));
    offset.is_some_and(|offset| offset < program.p_filesz(LE))
        && program.p_vaddr(LE) >= START_KERNEL_MAP
}

/// The release, from the banner.
fn release(file: &[u8]) -> Result<String, ImageError> {
    // Other strings start like a banner; only in the banner a digit follows.
    let version = |banner: &&[u8]| {
        let follows = |at: usize| &file[at + banner.len()..];
        let mut found = memmem::find_iter(file, banner).map(follows);
        found.find(|text| text.first().is_some_and(u8::is_ascii_digit))
    };
    leading_release(BANNERS.iter().find_map(version).unwrap_or_default())
}

/// A bzImage's setup header for a kernel of `footprint` bytes with the preferred address `base`.
fn setup_header(base: u64, footprint: u64) -> Vec<u8> {
    /// End of the header of protocol 2.15: after `kernel_info_offset`.
    const END: usize = 0x26c;
    const VERSION: u16 = 0x020f;
    /// `COMMAND_LINE_SIZE` less the final NUL.
    const COMMAND_LINE_MAX: u32 = 2047;
    const INITRD_ADDRESS_MAX: u32 = 0x7fff_ffff;
    let mut page = [0; END];
    let mut put =
        |offset: usize, field: &[u8]| page[offset..offset + field.len()].copy_from_slice(field);
    put(0x1fe, &BOOT_FLAG.to_le_bytes());
    // A short jump to the end of the header, from which loaders derive its size.
    put(0x200, &[0xeb, (END - 0x202) as u8]);
    put(0x202, &MAGIC);
    put(0x206, &VERSION.to_le_bytes());
    put(0x211, &[LOADED_HIGH]);
    put(0x22c, &INITRD_ADDRESS_MAX.to_le_bytes());
    put(0x230, &(LARGE_PAGE as u32).to_le_bytes());
    put(0x234, &[1, LARGE_PAGE.trailing_zeros() as u8]);
    put(
        0x236,
        &(bzimage::XLF_KERNEL_64 | bzimage::XLF_CAN_BE_LOADED_ABOVE_4G).to_le_bytes(),
    );
    put(0x238, &COMMAND_LINE_MAX.to_le_bytes());
    put(0x258, &base.to_le_bytes());
    put(0x260, &(footprint as u32).to_le_bytes());
    page[SETUP_HEADER..].to_vec()
}

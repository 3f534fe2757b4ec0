//! The ELF file of a loadable module, and where the kernel puts its sections.
//!
//! The kernel puts the sections of a module into memory in an order that follows from their flags
//! (`layout_sections`, kernel/module/main.c). So where each is follows from the file and from the
//! starts of the module's regions; what else the kernel says of it, in `/sys/module` say, is not
//! needed.

use super::ReferenceError;
use super::patch_sites::is_trampoline;
use crate::error::ImageError;
use crate::running::{LoadedModule, ModuleMemory};
use object::LittleEndian as LE;
use object::elf::{
    EM_X86_64, ET_REL, FileHeader64, Rela64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHN_ABS,
    SHN_UNDEF, SHT_NOBITS, SHT_SYMTAB, STB_LOCAL, STB_WEAK, STT_FUNC, STT_OBJECT, SectionFlags,
    SectionHeader64, Sym64, SymbolBind, SymbolType,
};
use object::read::elf::{FileHeader, SectionHeader, Sym, SymbolTable};
use std::collections::{HashMap, HashSet};

/// Pages, to which each part of a module is padded.
const PAGE: u64 = 4096;
/// Limit on a section, in bytes: the largest modules have less than 30 MiB in all.
const SECTION_SIZE_MAX: u64 = 64 << 20;
/// Limit on the sections of a module: those of distributions have less than 200.
const SECTIONS_MAX: usize = 4096;
/// Per-CPU variables, which are in areas of their own.
const PERCPU: &str = ".data..percpu";
/// What the loader does not keep with the rest.
const NOT_KEPT: [&str; 3] = [".modinfo", "__versions", PERCPU];
/// Start of the names of what is freed after initialization.
const INIT: &str = ".init";
/// What is constant after initialization, though it is writable by its flags (kernel/module/strict_rwx.c); the last
/// one in newer kernels only.
const RO_AFTER_INIT: [&str; 3] = [".data..ro_after_init", "__jump_table", STATIC_CALL_SITES];
const STATIC_CALL_SITES: &str = ".static_call_sites";
/// The module's `struct module`.
const THIS_MODULE: &str = ".gnu.linkonce.this_module";
/// Start of the names of constants that nothing sorts or patches.
const CONSTANTS: &str = ".rodata";
/// What tells builds of a module apart.
const BUILD_ID: &str = ".note.gnu.build-id";
/// Start of the names of symbols that describe an export.
const EXPORT: &str = "__ksymtab_";
/// Sections of a symbol that are none.
const UNDEFINED: usize = SHN_UNDEF.0 as usize;
const ABSOLUTE: usize = SHN_ABS.0 as usize;

/// Addresses of what modules export.
pub type Exports = HashMap<String, u64>;

/// The file of a module.
#[derive(Debug)]
pub struct ModuleFile<'a> {
    pub(super) sections: Vec<Section<'a>>,
    symbols: Vec<Symbol<'a>>,
}

/// A part of a module's memory, in their order there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Text,
    Rodata,
    RoAfterInit,
    Data,
}

impl Part {
    const ALL: [Self; 4] = [Self::Text, Self::Rodata, Self::RoAfterInit, Self::Data];

    /// Data, if it is ordinary.
    fn or_data(self, is_ordinary: bool) -> Self {
        if is_ordinary { Self::Data } else { self }
    }
}

/// A section of a module.
#[derive(Debug)]
pub(super) struct Section<'a> {
    pub(super) name: &'a str,
    /// Its bytes in the file; none of a section of zeros.
    pub(super) bytes: &'a [u8],
    pub(super) relocations: &'a [Rela64<LE>],
    flags: SectionFlags,
    size: u64,
    align: u64,
}

#[derive(Debug)]
struct Symbol<'a> {
    name: &'a str,
    section: usize,
    value: u64,
    binding: SymbolBind,
    kind: SymbolType,
}

impl<'a> ModuleFile<'a> {
    /// Reads the ELF file of a module (see [`unpack_module`](crate::unpack_module)).
    ///
    /// # Errors
    /// [`ImageError`] when it is none.
    pub fn parse(file: &'a [u8]) -> Result<Self, ImageError> {
        let header = FileHeader64::<LE>::parse(file)?;
        let fits = header.is_little_endian()
            && header.e_machine(LE) == EM_X86_64
            && header.e_type(LE) == ET_REL;
        if !fits {
            return Err(malformed("it is no module for x86-64"));
        }
        let table = header.sections(LE, file)?;
        if table.len() > SECTIONS_MAX {
            return Err(malformed("it has too many sections"));
        }
        let mut sections = Vec::new();
        for section in table.iter() {
            let name = table.section_name(LE, section)?;
            sections.push(Section::read(section, name, file)?);
        }
        for section in table.iter() {
            let target = section.sh_info(LE) as usize;
            if let Some((relocations, _)) = section.rela(LE, file)?
                && let Some(target) = sections.get_mut(target)
            {
                target.relocations = relocations;
            }
        }
        let table = table.symbols(LE, file, SHT_SYMTAB)?;
        let symbols = table.iter().map(|symbol| Symbol::read(symbol, &table));
        Ok(Self {
            symbols: symbols.collect::<Result<_, _>>()?,
            sections,
        })
    }

    /// What it exports, where it was loaded.
    ///
    /// # Errors
    /// [`ReferenceError::OtherFile`] when what was loaded is not this file.
    pub fn exports(&self, loaded: &LoadedModule) -> Result<Exports, ReferenceError> {
        let places = self.places(loaded)?;
        let names = self.symbols.iter().map(|symbol| symbol.name);
        let described: HashSet<_> = names.filter_map(|name| name.strip_prefix(EXPORT)).collect();
        let is_export =
            |symbol: &&Symbol<'_>| symbol.binding != STB_LOCAL && described.contains(symbol.name);
        let exports = self.symbols.iter().filter(is_export);
        let placed =
            exports.filter_map(|symbol| Some((symbol.name.to_owned(), symbol.address(&places)?)));
        Ok(placed.collect())
    }

    /// The bytes of a section, if there is such a one.
    #[must_use]
    pub fn content_of(&self, section: &str) -> Option<&'a [u8]> {
        let found = self.sections.iter().find(|one| one.name == section);
        found.map(|section| section.bytes)
    }

    /// Where a section is in memory, if it is kept.
    ///
    /// # Errors
    /// [`ReferenceError::OtherFile`] when what was loaded is not this file.
    pub fn address_of(
        &self,
        section: &str,
        loaded: &LoadedModule,
    ) -> Result<Option<u64>, ReferenceError> {
        let places = self.places(loaded)?;
        let mut sections = self.sections.iter().zip(places);
        let found = sections.find(|(one, _)| one.name == section);
        Ok(found.and_then(|(_, place)| place))
    }

    /// The address of each section; `None` if it is not kept.
    pub(super) fn places(&self, loaded: &LoadedModule) -> Result<Vec<Option<u64>>, ReferenceError> {
        let own = self.sections.iter().position(|one| one.name == THIS_MODULE);
        // What kernels differ in tells the place of the one structure that is known.
        for differs in [&[][..], &[STATIC_CALL_SITES]] {
            let places = self.places_but(loaded, differs)?;
            if own.is_none_or(|own| places[own] == Some(loaded.address)) {
                return Ok(places);
            }
        }
        Err(ReferenceError::OtherFile)
    }

    /// As [`ModuleFile::places`], of a kernel that has these sections among ordinary data.
    fn places_but(
        &self,
        loaded: &LoadedModule,
        ordinary: &[&str],
    ) -> Result<Vec<Option<u64>>, ReferenceError> {
        let mut places = vec![None; self.sections.len()];
        let mut at = 0;
        for part in Part::ALL {
            let base = match loaded.memory {
                ModuleMemory::One { base, .. } => base,
                ModuleMemory::Each { bases, .. } => {
                    at = 0;
                    bases[part as usize]
                }
            };
            for (section, place) in self.sections.iter().zip(&mut places) {
                let is_ordinary = ordinary.contains(&section.name);
                if section.part().map(|part| part.or_data(is_ordinary)) == Some(part) {
                    let start = section.aligned(at).ok_or(ReferenceError::OtherFile)?;
                    *place = Some(base.wrapping_add(start));
                    at = start + section.size;
                }
            }
            at = at.next_multiple_of(PAGE);
            let text = loaded.memory.text();
            if part == Part::Text && text.end.checked_sub(text.start) != Some(at) {
                return Err(ReferenceError::OtherFile);
            }
        }
        for (section, place) in self.sections.iter().zip(&mut places) {
            if section.name == PERCPU {
                *place = Some(loaded.percpu);
            }
        }
        Ok(places)
    }

    /// The address of each symbol; `None` if it is not known. `external` knows those of others.
    pub(super) fn addresses(
        &self,
        places: &[Option<u64>],
        external: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Option<u64>> {
        let address = |symbol: &Symbol<'_>| match symbol.section {
            UNDEFINED if symbol.name.is_empty() => Some(0),
            UNDEFINED => external(symbol.name).or((symbol.binding == STB_WEAK).then_some(0)),
            ABSOLUTE => Some(symbol.value),
            _ => symbol.address(places),
        };
        self.symbols.iter().map(address).collect()
    }

    /// Addresses of the trampolines of its static calls.
    pub(super) fn trampolines(&self, places: &[Option<u64>]) -> Vec<u64> {
        let own = self.symbols.iter().filter(|one| is_trampoline(one.name));
        own.filter_map(|symbol| symbol.address(places)).collect()
    }

    /// Its functions and variables with their addresses, by address.
    pub(super) fn named(&self, places: &[Option<u64>]) -> Vec<(u64, Box<str>)> {
        let named = self.symbols.iter().filter(|one| {
            let is_shown = one.name.bytes().all(|byte| byte.is_ascii_graphic());
            matches!(one.kind, STT_FUNC | STT_OBJECT) && is_shown
        });
        let placed = named.filter_map(|symbol| Some((symbol.address(places)?, symbol.name.into())));
        let mut placed: Vec<_> = placed.collect();
        placed.sort();
        placed
    }
}

impl<'a> Section<'a> {
    fn read(
        section: &SectionHeader64<LE>,
        name: &'a [u8],
        file: &'a [u8],
    ) -> Result<Self, ImageError> {
        let size = section.sh_size(LE);
        if size > SECTION_SIZE_MAX {
            return Err(malformed("a section is too large"));
        }
        Ok(Self {
            name: str::from_utf8(name).map_err(|_| malformed("a name is not text"))?,
            bytes: match section.sh_type(LE) {
                SHT_NOBITS => &[],
                _ => section.data(LE, file)?,
            },
            relocations: &[],
            flags: section.sh_flags(LE),
            size,
            align: section.sh_addralign(LE).max(1),
        })
    }

    pub(super) fn is_code(&self) -> bool {
        self.part() == Some(Part::Text)
    }

    pub(super) fn is_constant(&self) -> bool {
        self.part() == Some(Part::Rodata) && self.name.starts_with(CONSTANTS)
    }

    pub(super) fn is_build_id(&self) -> bool {
        self.name == BUILD_ID
    }

    /// The part of the module's memory that it is in, if it stays there.
    fn part(&self) -> Option<Part> {
        let has = |flag: SectionFlags| self.flags.0 & flag.0 != 0;
        let is_kept =
            has(SHF_ALLOC) && !NOT_KEPT.contains(&self.name) && !self.name.starts_with(INIT);
        is_kept.then(|| match self.name {
            _ if has(SHF_EXECINSTR) => Part::Text,
            _ if !has(SHF_WRITE) => Part::Rodata,
            name if RO_AFTER_INIT.contains(&name) => Part::RoAfterInit,
            _ => Part::Data,
        })
    }

    /// Where it begins, if what is before it ends there; `None` if that is nowhere.
    fn aligned(&self, at: u64) -> Option<u64> {
        let aligned = at.checked_next_multiple_of(self.align)?;
        (aligned < u64::MAX / 2).then_some(aligned)
    }
}

impl<'a> Symbol<'a> {
    fn read(
        symbol: &Sym64<LE>,
        table: &SymbolTable<'a, FileHeader64<LE>>,
    ) -> Result<Self, ImageError> {
        let name = symbol.name(LE, table.strings())?;
        Ok(Self {
            name: str::from_utf8(name).map_err(|_| malformed("a name is not text"))?,
            section: usize::from(symbol.st_shndx(LE).0),
            value: symbol.st_value(LE),
            binding: symbol.st_bind(),
            kind: symbol.st_type(),
        })
    }

    /// Its address, if it is in a section that is kept.
    fn address(&self, places: &[Option<u64>]) -> Option<u64> {
        if self.section == UNDEFINED {
            return None;
        }
        Some((*places.get(self.section)?)?.wrapping_add(self.value))
    }
}

fn malformed(what: &'static str) -> ImageError {
    ImageError::Malformed { what }
}

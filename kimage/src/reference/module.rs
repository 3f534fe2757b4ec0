//! What the code and constants of a loaded module must be, from its file.

use super::code::Code;
use super::module_file::{Exports, ModuleFile};
use super::module_relocations::relocate;
use super::patch_sites::{Boot, Kind, Site, module_sites};
use super::{Reference, ReferenceError};
use crate::memory::PhysicalMemory;
use crate::running::{LoadedModule, RunningError, RunningKernel};
use std::ops::Range;

/// A module's code and constants, as they must stay.
#[derive(Debug)]
pub struct ModuleReference {
    /// Its code.
    pub code: Code,
    /// Its constants.
    pub constants: Vec<Code>,
    name: String,
    /// Its symbols with their addresses, by address.
    symbols: Vec<(u64, Box<str>)>,
}

impl ModuleReference {
    /// Describes an address in it: `module:symbol+0x12`.
    #[must_use]
    pub fn describe(&self, address: u64) -> String {
        let before = self.symbols.partition_point(|(start, _)| *start <= address);
        match before.checked_sub(1).map(|last| &self.symbols[last]) {
            Some((start, name)) => format!("{}:{name}+{:#x}", self.name, address - start),
            None => format!("{}:{address:#x}", self.name),
        }
    }
}

/// A section where it was loaded.
struct Placed<'a> {
    name: &'a str,
    start: u64,
    bytes: Vec<u8>,
    /// Addresses of what depends on what is not known.
    unknown: Vec<Range<u64>>,
    is_code: bool,
    is_constant: bool,
}

impl Reference {
    /// The code and constants of a loaded module, as they must stay, from its file. `exports` are those
    /// of all modules, and `modules` is the code of all.
    ///
    /// # Errors
    /// [`ReferenceError`] when what was loaded is not this file, or the kernel cannot be read.
    pub fn module<M: PhysicalMemory + ?Sized>(
        &self,
        kernel: &RunningKernel<'_, M>,
        loaded: &LoadedModule,
        file: &ModuleFile<'_>,
        exports: &Exports,
        modules: &[Range<u64>],
    ) -> Result<ModuleReference, ReferenceError> {
        let offset = self.offset(kernel)?;
        let places = file.places(loaded)?;
        check_build_id(kernel, file, &places)?;
        let external = |name: &str| {
            let own = self.exported(name, offset);
            own.or_else(|| exports.get(name).copied())
        };
        let sections = placed(file, &places, &file.addresses(&places, external))?;
        let parts: Vec<_> = sections
            .iter()
            .map(|section| (section.name, section.start, section.bytes.as_slice()))
            .collect();
        let trampolines = file.trampolines(&places).into_iter();
        let sites = module_sites(&parts, trampolines, kernel.btf()?);
        let mut known = modules.to_vec();
        known.push(self.code.start.wrapping_add(offset)..self.code.end.wrapping_add(offset));
        let (bytes, sites) = code(&sections, loaded.memory.text(), sites)?;
        let start = loaded.memory.text().start;
        let constants = sections.iter().filter(|section| section.is_constant);
        Ok(ModuleReference {
            code: Code::learn(
                kernel,
                start,
                bytes,
                &sites,
                &self.sites.thunks(offset),
                &known,
            )?,
            constants: constants
                .map(|section| constant(kernel, section))
                .collect::<Result<_, _>>()?,
            name: loaded.name.clone(),
            symbols: file.named(&places),
        })
    }

    /// The address of a symbol of the kernel that modules use, in a kernel with that offset.
    fn exported(&self, name: &str, offset: u64) -> Option<u64> {
        let address = self.symbols.global(name)?;
        // Those of per-CPU variables are offsets.
        let is_percpu = address < self.text;
        Some(match is_percpu {
            true => address,
            false => address.wrapping_add(offset),
        })
    }
}

/// Whether what was loaded is of the same build as the file, if that tells its build.
fn check_build_id<M: PhysicalMemory + ?Sized>(
    kernel: &RunningKernel<'_, M>,
    file: &ModuleFile<'_>,
    places: &[Option<u64>],
) -> Result<(), ReferenceError> {
    let mut sections = file.sections.iter().zip(places);
    let Some((section, Some(start))) = sections.find(|(section, _)| section.is_build_id()) else {
        return Ok(());
    };
    let mut found = vec![0; section.bytes.len()];
    kernel.read(*start, &mut found)?;
    let same = found == section.bytes;
    same.then_some(()).ok_or(ReferenceError::OtherFile)
}

/// The sections that are kept, relocated.
fn placed<'a>(
    file: &ModuleFile<'a>,
    places: &[Option<u64>],
    symbols: &[Option<u64>],
) -> Result<Vec<Placed<'a>>, ReferenceError> {
    let mut all = Vec::new();
    for (section, place) in file.sections.iter().zip(places) {
        let Some(start) = *place else {
            continue;
        };
        let relocated = relocate(section.bytes, start, section.relocations, symbols)?;
        let address = |offset: usize| start.wrapping_add(offset as u64);
        let unknown = relocated.unknown.iter();
        all.push(Placed {
            name: section.name,
            start,
            unknown: unknown
                .map(|range| address(range.start)..address(range.end))
                .collect(),
            bytes: relocated.bytes,
            is_code: section.is_code(),
            is_constant: section.is_constant(),
        });
    }
    Ok(all)
}

/// The bytes of the module's code, and the places in it that are patched. What is between its sections,
/// or depends on what is not known, is as it is found.
fn code(
    sections: &[Placed<'_>],
    range: Range<u64>,
    mut sites: Vec<Site>,
) -> Result<(Vec<u8>, Vec<Site>), ReferenceError> {
    let mut bytes = Vec::new();
    let end_of = |bytes: &Vec<u8>| range.start.wrapping_add(bytes.len() as u64);
    let mut as_found = Vec::new();
    for section in sections.iter().filter(|section| section.is_code) {
        let gap = section.start.checked_sub(end_of(&bytes));
        let gap = gap.ok_or(ReferenceError::OtherFile)?;
        as_found.push(end_of(&bytes)..section.start);
        bytes.resize(bytes.len() + gap as usize, 0);
        bytes.extend_from_slice(&section.bytes);
        as_found.extend(section.unknown.iter().cloned());
    }
    as_found.push(end_of(&bytes)..range.end);
    bytes.resize((range.end - range.start) as usize, 0);
    sites.retain(|site| range.contains(&site.start));
    sites.extend(as_found.into_iter().map(|range| Site {
        start: range.start,
        size: range.end.saturating_sub(range.start),
        kind: Kind::Boot(Boot::Any),
    }));
    sites.sort_by_key(|site| site.start);
    Ok((bytes, sites))
}

/// Constants; what depends on what is not known is as it is found.
fn constant<M: PhysicalMemory + ?Sized>(
    kernel: &RunningKernel<'_, M>,
    section: &Placed<'_>,
) -> Result<Code, RunningError> {
    let mut bytes = section.bytes.clone();
    for range in &section.unknown {
        let at = (range.start - section.start) as usize;
        let end = (range.end - section.start) as usize;
        kernel.read(range.start, &mut bytes[at..end])?;
    }
    Ok(Code::constant(section.start, bytes))
}

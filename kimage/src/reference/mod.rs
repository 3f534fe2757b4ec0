//! What the code and constants of a running kernel must be, from its image.
//!
//! A kernel in memory differs from its file in known ways only, each listed in the file itself:
//!
//! - **Relocation** (KASLR): the build appends the places whose value depends on the kernel's
//!   address (`relocations`).
//! - **Patches of the boot**: alternatives for this processor, return thunks, calls of
//!   paravirtualization and so on are replaced once, before the first program runs.
//! - **Patches at any time**: jump labels, static calls, and the calls of ftrace at the start of
//!   functions, which also BPF uses, are switched while the kernel runs, each between few forms.
//! - **Kprobes**, at any instruction, listed in a table of the kernel.
//!
//! [`Reference`] is read once from the image. [`Reference::code`] takes the patches of the boot from a
//! running kernel, each if it is of a form that such a patch can have: which of them it ought to be
//! depends on the processor and on options. [`Code::differences`] finds everything that differs later, and
//! [`Reference::constants`] makes the same for the read-only data, in which nothing is patched, and
//! [`Reference::module`] for a loaded module, from its file.

mod boot_patches;
mod code;
mod module;
mod module_file;
mod module_relocations;
mod patch_sites;
mod relocations;

pub use code::{Change, Code, Differences, Transfer};
pub use module::ModuleReference;
pub use module_file::{Exports, ModuleFile};

use crate::btf::{Btf, BtfError};
use crate::bytes::length;
use crate::elf::Vmlinux;
use crate::error::ImageError;
use crate::memory::PhysicalMemory;
use crate::running::{RunningError, RunningKernel};
use crate::symbols::{SymbolError, Symbols};
use patch_sites::Sites;
use relocations::Relocations;
use std::ops::Range;
use std::slice;
use thiserror::Error;

/// Why an image cannot serve as reference.
#[derive(Debug, Error)]
pub enum ReferenceError {
    /// The file is not a `vmlinux`.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Its symbols cannot be read.
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    /// Its type information cannot be read.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// Something that every relocatable kernel has is missing.
    #[error("the kernel has no {0}; use the image that it was started from, a bzImage")]
    Missing(&'static str),
    /// The running kernel cannot be read.
    #[error(transparent)]
    Running(#[from] RunningError),
    /// What was loaded is of another file.
    #[error("the module in memory is not of this file")]
    OtherFile,
    /// The file of a module has relocations of an unknown kind.
    #[error("relocations of the kind {0} are unknown")]
    Relocation(u32),
    /// The running kernel is not of this image.
    #[error("the kernel in memory is not of this image")]
    OtherKernel,
}

/// Code and constants of a kernel, from its image.
#[derive(Debug)]
pub struct Reference {
    /// Contents of the segments, each with the link address of its first byte.
    segments: Vec<(u64, Vec<u8>)>,
    relocations: Relocations,
    sites: Sites,
    symbols: Symbols,
    /// Link addresses of the code.
    code: Range<u64>,
    /// Link addresses of constants: what is never written after the image has been loaded.
    constants: Vec<Range<u64>>,
    /// Link address of the image's start.
    text: u64,
}

impl Reference {
    /// Reads a reference from the ELF file `vmlinux` of a bzImage, with the relocations that follow
    /// it (see [`vmlinux`](crate::vmlinux)).
    ///
    /// # Errors
    /// [`ReferenceError`] when the file is not a `vmlinux`, or lacks relocations, symbols or types.
    pub fn from_vmlinux(file: &[u8]) -> Result<Self, ReferenceError> {
        let vmlinux = Vmlinux::parse(file)?;
        let symbols = Symbols::from_vmlinux(file)?;
        let btf = Btf::from_vmlinux(file)?;
        let address = |name| symbols.address(name).ok_or(ReferenceError::Missing(name));
        // The symbol is behind the padding that follows the last constant.
        let end_of_segment = |start| {
            let rest = vmlinux.bytes_from(start).unwrap_or_default();
            start.saturating_add(length(rest))
        };
        let late = address("__end_ro_after_init")?;
        let end = address("__end_rodata")?.min(end_of_segment(late));
        Ok(Self {
            segments: vmlinux
                .contents()
                .map(|(start, bytes)| (start, bytes.to_vec()))
                .collect(),
            relocations: Relocations::parse(file, &vmlinux)?,
            sites: Sites::find(&vmlinux, &symbols, &btf)?,
            code: address("_stext")?..address("_etext")?,
            constants: vec![
                address("__start_rodata")?..address("__start_ro_after_init")?,
                late..end,
            ],
            text: address("_text")?,
            symbols,
        })
    }

    /// The code of a running kernel, as it must stay.
    ///
    /// # Errors
    /// [`ReferenceError`] when the kernel is of another image, or cannot be read.
    pub fn code<M: PhysicalMemory + ?Sized>(
        &self,
        kernel: &RunningKernel<'_, M>,
    ) -> Result<Code, ReferenceError> {
        let offset = self.offset(kernel)?;
        let expected = self.expected(&self.code, offset)?;
        let start = self.code.start.wrapping_add(offset);
        let code = start..self.code.end.wrapping_add(offset);
        Ok(Code::learn(
            kernel,
            start,
            expected,
            &self.sites.relocated(&self.code, offset),
            &self.sites.thunks(offset),
            slice::from_ref(&code),
        )?)
    }

    /// The constants of a running kernel, as they must stay.
    ///
    /// # Errors
    /// As [`code`](Self::code).
    pub fn constants<M: PhysicalMemory + ?Sized>(
        &self,
        kernel: &RunningKernel<'_, M>,
    ) -> Result<Vec<Code>, ReferenceError> {
        let offset = self.offset(kernel)?;
        let part = |range: &Range<u64>| {
            let start = range.start.wrapping_add(offset);
            Ok(Code::constant(start, self.expected(range, offset)?))
        };
        self.constants.iter().map(part).collect()
    }

    /// Offset of the kernel's addresses from those of the image.
    fn offset<M: PhysicalMemory + ?Sized>(
        &self,
        kernel: &RunningKernel<'_, M>,
    ) -> Result<u64, ReferenceError> {
        let offset = kernel.placement().virtual_offset;
        let same = kernel.image().start == self.text.wrapping_add(offset);
        same.then_some(offset).ok_or(ReferenceError::OtherKernel)
    }

    /// The bytes of a range of link addresses in a kernel with that offset.
    fn expected(&self, range: &Range<u64>, offset: u64) -> Result<Vec<u8>, ReferenceError> {
        let size = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let content = self.segments.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(range.start.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(size)?)
        });
        let mut bytes = content.ok_or(ReferenceError::Missing("code"))?.to_vec();
        self.relocations.apply(range.start, &mut bytes, offset);
        Ok(bytes)
    }
}

//! Loaded modules: where the kernel has put the parts of each.
//!
//! Everything here is the kernel's to write: a list of modules is followed only so far, and what a
//! module claims to be is to be compared with its file.

use super::{Object, RunningError, RunningKernel};
use crate::memory::PhysicalMemory;
use std::ops::Range;

/// Limit on loaded modules that are looked at: a distribution's kernel has some hundreds.
pub(super) const MODULES_MAX: usize = 1024;

/// Where the parts of a module are that stay when it has been initialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModuleMemory {
    /// All in one region, one behind the other (up to Linux 6.3).
    One {
        /// Virtual address of the first byte.
        base: u64,
        /// Size of the code, in bytes, with what fills its last page.
        text_size: u64,
    },
    /// Each in a region of its own (`enum mod_mem_type`).
    Each {
        /// Virtual addresses of code, constants, what is constant after initialization, and data.
        bases: [u64; 4],
        /// Size of the code, in bytes, with what fills its last page.
        text_size: u64,
    },
}

impl ModuleMemory {
    /// Virtual addresses of the code.
    #[must_use]
    pub fn text(&self) -> Range<u64> {
        let (start, size) = match *self {
            Self::One { base, text_size } => (base, text_size),
            Self::Each { bases, text_size } => (bases[0], text_size),
        };
        start..start.saturating_add(size)
    }
}

/// A module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LoadedModule {
    /// Its name: what the kernel says, with other than printable characters replaced.
    pub name: String,
    /// Virtual address of its `struct module`.
    pub address: u64,
    /// Whether it has been initialized, and does not end.
    pub is_live: bool,
    /// Where it is.
    pub memory: ModuleMemory,
    /// Offset of its per-CPU variables in a per-CPU area; 0 if it has none.
    pub percpu: u64,
}

impl<M: PhysicalMemory + ?Sized> RunningKernel<'_, M> {
    /// The modules in the kernel's list, as many as can be looked at, the latest first.
    ///
    /// # Errors
    /// [`RunningError`] when the list cannot be read, perhaps since it just changes.
    pub fn modules(&self) -> Result<Vec<LoadedModule>, RunningError> {
        let live = self
            .btf()?
            .enumerator("module_state", "MODULE_STATE_LIVE")?;
        let listed = self
            .global("modules", "list_head")?
            .list("module", "list")?;
        let modules = listed.iter().take(MODULES_MAX);
        modules
            .map(|module| LoadedModule::of(module, u64::from(live)))
            .collect()
    }
}

impl LoadedModule {
    /// What the kernel says of a module, by its `struct module`.
    ///
    /// # Errors
    /// [`RunningError`] when it cannot be read.
    pub fn at<M: PhysicalMemory + ?Sized>(
        module: &Object<'_, '_, M>,
    ) -> Result<Self, RunningError> {
        let btf = module.kernel().btf()?;
        let live = btf.enumerator("module_state", "MODULE_STATE_LIVE")?;
        Self::of(module, u64::from(live))
    }

    fn of<M: PhysicalMemory + ?Sized>(
        module: &Object<'_, '_, M>,
        live: u64,
    ) -> Result<Self, RunningError> {
        Ok(Self {
            name: module.member("name")?.text()?,
            address: module.address(),
            is_live: module.number("state")? == live,
            memory: memory(module)?,
            // A kernel for one processor has none.
            percpu: module.number("percpu").unwrap_or_default(),
        })
    }
}

fn memory<M: PhysicalMemory + ?Sized>(
    module: &Object<'_, '_, M>,
) -> Result<ModuleMemory, RunningError> {
    if let Ok(core) = module.member("core_layout") {
        return Ok(ModuleMemory::One {
            base: core.number("base")?,
            text_size: core.number("text_size")?,
        });
    }
    let regions = module.member("mem")?;
    let region = |name| {
        let number = module.kernel().btf()?.enumerator("mod_mem_type", name)?;
        regions.element(u64::from(number))
    };
    let base = |name| region(name)?.number("base");
    Ok(ModuleMemory::Each {
        bases: [
            base("MOD_TEXT")?,
            base("MOD_RODATA")?,
            base("MOD_RO_AFTER_INIT")?,
            base("MOD_DATA")?,
        ],
        text_size: region("MOD_TEXT")?.number("size")?,
    })
}

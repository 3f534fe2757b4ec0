//! A kernel in memory, inspected by its own tables: symbols, types, page tables.
//!
//! [`log::locate`](crate::log::locate) finds it. Its tables are in memory unchanged, with run-time
//! addresses, so from then on no file is needed: neither the image nor debug information.
//!
//! ```no_run
//! # fn show(layout: &kimage::log::LogLayout, memory: &dyn kimage::PhysicalMemory)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let placement = kimage::log::locate(layout, memory).ok_or("no kernel runs there yet")?;
//! let kernel = kimage::running::RunningKernel::attach(layout, placement, memory)?;
//! let init_task = kernel.symbol("init_task")?;
//! let mut bytes = [0; 64];
//! kernel.read(init_task, &mut bytes)?;
//! # Ok(())
//! # }
//! ```

mod code;
mod error;
mod modules;
mod object;
mod page_table;
mod processors;
mod registers;

pub use error::{RunningError, VirtualReadError};
pub use modules::{LoadedModule, ModuleMemory};
pub use object::{LIST_MAX, ListError, Object};
pub use page_table::{Levels, PageTable};
pub use processors::Processor;
pub use registers::{Registers, THREAD_SIZE};

use crate::btf::Btf;
use crate::log::{LogLayout, Placement};
use crate::memory::PhysicalMemory;
use crate::symbols::{SymbolError, Symbols};
use std::fmt;
use std::ops::Range;

/// `__PAGE_OFFSET_BASE_L4` and `__PAGE_OFFSET_BASE_L5` of arch/x86/include/asm/page_64_types.h:
/// start of the direct map of a kernel without `page_offset_base`.
const PAGE_OFFSET_BASE_L4: u64 = 0xffff_8880_0000_0000;
const PAGE_OFFSET_BASE_L5: u64 = 0xff11_0000_0000_0000;
/// `pgdir_shift` of a kernel with five levels of page tables.
const PGDIR_SHIFT_L5: u32 = 48;
/// The root of the kernel's page table: `swapper_pg_dir`.
const PAGE_TABLE: &str = "init_top_pgt";
/// Far above `VMCOREINFO_BYTES`, which is one page.
const VMCOREINFO_SIZE_MAX: u64 = 1 << 16;

/// A kernel found in memory, running or crashed.
///
/// Everything but the layout is read from that kernel's memory and treated as hostile.
pub struct RunningKernel<'a, M: ?Sized> {
    memory: &'a M,
    placement: Placement,
    /// Virtual addresses of the image.
    image: Range<u64>,
    symbols: Symbols,
    btf: Option<Btf>,
    /// Addresses of the root of the page table, and of what says how many levels it has: looked up
    /// once, since each read needs them.
    page_table: Option<u64>,
    pgdir_shift: Option<u64>,
}

// By hand: a derive would ask the same of `M`.
impl<M: ?Sized> fmt::Debug for RunningKernel<'_, M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("RunningKernel");
        debug
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

impl<'a, M: PhysicalMemory + ?Sized> RunningKernel<'a, M> {
    /// Reads the tables of the kernel of `layout` at `placement`. Copies its image, some 50 MiB,
    /// for the length of the call.
    ///
    /// # Errors
    /// [`RunningError`] when its image cannot be read, or has no symbols (any more).
    pub fn attach(
        layout: &LogLayout,
        placement: Placement,
        memory: &'a M,
    ) -> Result<Self, RunningError> {
        let link = layout.image();
        let size = usize::try_from(link.end.saturating_sub(link.start)).unwrap_or(usize::MAX);
        if size as u64 > crate::elf::KERNEL_IMAGE_SIZE {
            return Err(SymbolError::Malformed("it is larger than a kernel can be").into());
        }
        let mut bytes = vec![0; size];
        memory.read(placement.physical, &mut bytes)?;
        let relocated = |address: u64| address.wrapping_add(placement.virtual_offset);
        let image = relocated(link.start)..relocated(link.end);
        let symbols = Symbols::from_memory(&bytes, image.start)?;
        let btf = btf(&bytes, &image, &symbols);
        Ok(Self {
            memory,
            placement,
            image,
            page_table: symbols.address(PAGE_TABLE),
            pgdir_shift: symbols.address("pgdir_shift"),
            symbols,
            btf,
        })
    }

    /// The placement of the kernel.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Virtual addresses of its image, from `_text` to `_end`.
    #[must_use]
    pub fn image(&self) -> Range<u64> {
        self.image.clone()
    }

    /// The memory that it is in.
    #[must_use]
    pub fn memory(&self) -> &'a M {
        self.memory
    }

    /// Its symbols, with run-time addresses (those of per-CPU variables are offsets).
    #[must_use]
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Virtual address of a symbol; offset of a per-CPU variable.
    ///
    /// # Errors
    /// [`RunningError::NoSymbol`].
    pub fn symbol(&self, name: &'static str) -> Result<u64, RunningError> {
        let address = self.symbols.address(name);
        address.ok_or(RunningError::NoSymbol(name))
    }

    /// Its types.
    ///
    /// # Errors
    /// [`RunningError::NoTypes`] when it has none.
    pub fn btf(&self) -> Result<&Btf, RunningError> {
        self.btf.as_ref().ok_or(RunningError::NoTypes)
    }

    /// Whether it has booted so far that it executes its first program: since then its code is only
    /// patched as it is at any time. Also of one that is about to halt.
    ///
    /// # Errors
    /// [`RunningError`] when the variable cannot be read.
    pub fn has_booted(&self) -> Result<bool, RunningError> {
        let running = self.btf()?.enumerator("system_states", "SYSTEM_RUNNING")?;
        Ok(self.image_half(self.symbol("system_state")?)? >= running)
    }

    /// Start of the direct map: the virtual address of physical address 0.
    ///
    /// # Errors
    /// [`RunningError`] when its variables cannot be read.
    pub fn direct_map(&self) -> Result<u64, RunningError> {
        match self.symbols.address("page_offset_base") {
            Some(variable) => self.image_word(variable),
            None => Ok(match self.levels()? {
                Levels::Four => PAGE_OFFSET_BASE_L4,
                Levels::Five => PAGE_OFFSET_BASE_L5,
            }),
        }
    }

    /// The kernel's page table: `swapper_pg_dir`. It does not map addresses of processes.
    ///
    /// # Errors
    /// [`RunningError`] when it is not found.
    pub fn page_table(&self) -> Result<PageTable<'a, M>, RunningError> {
        let root = self.page_table.ok_or(RunningError::NoSymbol(PAGE_TABLE))?;
        let root = self.physical(root)?;
        Ok(PageTable::new(self.memory, root, self.levels()?))
    }

    /// Copies bytes from a virtual address of the kernel.
    ///
    /// # Errors
    /// [`RunningError`] when not all of them are mapped; `into` is then unspecified.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), RunningError> {
        Ok(self.page_table()?.read(address, into)?)
    }

    /// The 64-bit word at a virtual address of the kernel.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn word(&self, address: u64) -> Result<u64, RunningError> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The kernel's information for tools that read its dumps
    /// (Documentation/admin-guide/kdump/vmcoreinfo.rst): lines of `NAME=value`. `None` until the
    /// kernel has written it, early in its boot.
    ///
    /// # Errors
    /// [`RunningError`] when it cannot be read.
    pub fn vmcoreinfo(&self) -> Result<Option<Vec<u8>>, RunningError> {
        let data = self.image_word(self.symbol("vmcoreinfo_data")?)?;
        let size = self.image_word(self.symbol("vmcoreinfo_size")?)?;
        if data == 0 || size == 0 || size > VMCOREINFO_SIZE_MAX {
            return Ok(None);
        }
        let mut text = vec![0; size as usize];
        self.read(data, &mut text)?;
        Ok(Some(text))
    }

    /// The physical address of a byte of the image.
    ///
    /// # Errors
    /// [`RunningError::OutsideImage`].
    pub fn physical(&self, address: u64) -> Result<u64, RunningError> {
        if !self.image.contains(&address) {
            return Err(RunningError::OutsideImage(address));
        }
        Ok(self.placement.physical + (address - self.image.start))
    }

    /// The 64-bit word at an address in the image.
    fn image_word(&self, address: u64) -> Result<u64, RunningError> {
        let mut word = [0; 8];
        self.memory.read(self.physical(address)?, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The 32-bit word at an address in the image.
    fn image_half(&self, address: u64) -> Result<u32, RunningError> {
        let mut word = [0; 4];
        self.memory.read(self.physical(address)?, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn levels(&self) -> Result<Levels, RunningError> {
        let Some(variable) = self.pgdir_shift else {
            return Ok(Levels::Four);
        };
        Ok(match self.image_half(variable)? {
            PGDIR_SHIFT_L5 => Levels::Five,
            _ => Levels::Four,
        })
    }
}

/// The type information in the image, if it has any.
fn btf(bytes: &[u8], image: &Range<u64>, symbols: &Symbols) -> Option<Btf> {
    let offset = |name| {
        let address = symbols.address(name)?;
        usize::try_from(address.checked_sub(image.start)?).ok()
    };
    let section = bytes.get(offset("__start_BTF")?..offset("__stop_BTF")?)?;
    Btf::parse(section).ok()
}

//! A kernel's symbols, from the table that the kernel itself carries: kallsyms.
//!
//! A distribution's kernel comes without an ELF symbol table, but `CONFIG_KALLSYMS` (with `_ALL`: data too) puts a
//! compressed one among its constants (scripts/kallsyms.c and kernel/kallsyms.c of the kernel). [`tables`] finds
//! it; this file expands the names.

mod tables;

use crate::elf::Vmlinux;
use crate::error::ImageError;
use tables::Tables;
use thiserror::Error;

/// `KSYM_NAME_LEN` of include/linux/kallsyms.h: no name is longer.
const NAME_MAX: usize = 512;
/// More than the names of all symbols of a kernel take: Debian's take 4 MiB.
const NAMES_SIZE_MAX: usize = 64 << 20;

/// Why a kernel's symbols cannot be had.
#[derive(Debug, Error)]
pub enum SymbolError {
    /// The file is no `vmlinux`.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There is no table, or one of a kind that is not known.
    #[error(
        "the kernel carries no symbol table of a known kind; use one that was built with CONFIG_KALLSYMS_ALL, \
         as Debian's are"
    )]
    NoTable,
    /// The table does not hold together.
    #[error("the kernel's symbol table is damaged: {0}; copy or install the kernel anew")]
    Malformed(&'static str),
}

/// One symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Link address; for a per-CPU variable its offset in the per-CPU area.
    pub address: u64,
    /// Kind, in the letters of nm(1): `T` and `t` for code, `D`, `d`, `B`, `b` for data, and so on.
    pub kind: char,
    /// Name. Static symbols of different files may share one.
    pub name: &'a str,
}

/// The symbols of a kernel, with the addresses that they were linked to.
#[derive(Debug, Clone)]
pub struct Symbols {
    /// In the table's order: by address.
    entries: Vec<Entry>,
    /// All names, one behind the other.
    names: String,
    /// Indices into `entries`, by name, then by address.
    by_name: Vec<u32>,
}

#[derive(Debug, Clone)]
struct Entry {
    address: u64,
    kind: u8,
    name: std::ops::Range<u32>,
}

impl Symbols {
    /// Reads the symbols of the ELF file `vmlinux` (see [`vmlinux`](crate::vmlinux)).
    ///
    /// All orders of the tables are known: that up to Linux 6.3, that since 6.4, and that since 7.0.
    ///
    /// # Errors
    /// [`SymbolError`] when the file is no `vmlinux`, or carries no whole table.
    pub fn from_vmlinux(vmlinux: &[u8]) -> Result<Self, SymbolError> {
        let vmlinux = Vmlinux::parse(vmlinux)?;
        let tables = vmlinux
            .contents()
            .find_map(|(start, bytes)| Tables::find(bytes, start));
        Self::expand(&tables.ok_or(SymbolError::NoTable)?)
    }

    /// Reads the symbols of a kernel from its image as it lies in memory, at the virtual address `start`. Their
    /// addresses are those where it runs, not those that it was linked to.
    ///
    /// # Errors
    /// [`SymbolError`] when there is no whole table.
    pub fn from_memory(image: &[u8], start: u64) -> Result<Self, SymbolError> {
        Self::expand(&Tables::find(image, start).ok_or(SymbolError::NoTable)?)
    }

    /// The link address of the first symbol called `name`.
    pub fn address(&self, name: &str) -> Option<u64> {
        let first = self
            .by_name
            .partition_point(|&index| self.name(&self.entries[index as usize]) < name);
        let entry = &self.entries[*self.by_name.get(first)? as usize];
        (self.name(entry) == name).then_some(entry.address)
    }

    /// All symbols, in the order of the kernel's table: by address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|entry| Symbol {
            address: entry.address,
            kind: char::from(entry.kind),
            name: self.name(entry),
        })
    }

    fn name(&self, entry: &Entry) -> &str {
        &self.names[entry.name.start as usize..entry.name.end as usize]
    }

    /// Expands all names.
    fn expand(tables: &Tables<'_>) -> Result<Self, SymbolError> {
        let mut symbols = Self {
            entries: Vec::new(),
            names: String::new(),
            by_name: Vec::new(),
        };
        let mut expanded = Vec::new();
        for (index, packed) in tables.packed_names().enumerate() {
            expanded.clear();
            for &code in packed {
                expanded.extend_from_slice(tables.token(code));
                if expanded.len() > NAME_MAX {
                    return Err(SymbolError::Malformed("a name is too long"));
                }
            }
            let address = tables
                .address(index)
                .ok_or(SymbolError::Malformed("an address is missing"))?;
            symbols.push(address, &expanded)?;
        }
        let mut by_name: Vec<u32> = (0..symbols.entries.len() as u32).collect();
        // A stable sort: among equal names the order by address remains.
        by_name.sort_by_key(|&index| symbols.name(&symbols.entries[index as usize]));
        symbols.by_name = by_name;
        Ok(symbols)
    }

    /// Adds a symbol: its kind and its name, as the table has them.
    fn push(&mut self, address: u64, kind_and_name: &[u8]) -> Result<(), SymbolError> {
        let Some((&kind, name)) = kind_and_name.split_first() else {
            return Err(SymbolError::Malformed("a symbol has no name"));
        };
        let name = str::from_utf8(name).map_err(|_| SymbolError::Malformed("a name is no text"))?;
        if self.names.len() + name.len() > NAMES_SIZE_MAX {
            return Err(SymbolError::Malformed("the names are too long"));
        }
        let start = self.names.len() as u32;
        self.names.push_str(name);
        self.entries.push(Entry {
            address,
            kind,
            name: start..self.names.len() as u32,
        });
        Ok(())
    }
}

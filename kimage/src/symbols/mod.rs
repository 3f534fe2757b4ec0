//! A kernel's symbols, from its own table: kallsyms.
//!
//! A distribution's kernel has no ELF symbol table, but `CONFIG_KALLSYMS` (with `_ALL` for data
//! too) puts a compressed one among its constants (scripts/kallsyms.c and kernel/kallsyms.c of the
//! kernel). [`tables`] finds it; this file expands the names.

mod tables;

use crate::elf::Vmlinux;
use crate::error::ImageError;
use crate::name_index::NameIndex;
use tables::Tables;
use thiserror::Error;

/// `KSYM_NAME_LEN` of include/linux/kallsyms.h: longest name.
const NAME_MAX: usize = 512;
/// Limit on the names of all symbols: Debian's take 4 MiB.
const NAMES_SIZE_MAX: usize = 64 << 20;

/// Why a kernel's symbols cannot be read.
#[derive(Debug, Error)]
pub enum SymbolError {
    /// The file is not a `vmlinux`.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// There is no table, or one of an unknown kind.
    #[error(
        "the kernel has no symbol table of a known kind; use one built with CONFIG_KALLSYMS_ALL, \
         like Debian's"
    )]
    NoTable,
    /// The table is inconsistent.
    #[error("the kernel's symbol table is damaged: {0}; copy or install the kernel again")]
    Malformed(&'static str),
}

/// A symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Link address; of a per-CPU variable its offset in the per-CPU area.
    pub address: u64,
    /// Type, by the letters of nm(1): `T` and `t` for code, `D`, `d`, `B`, `b` for data, and so on.
    pub kind: char,
    /// Name. Static symbols of different files may have the same.
    pub name: &'a str,
}

/// The symbols of a kernel, with their addresses.
#[derive(Debug, Clone)]
pub struct Symbols {
    /// In the table's order: by address.
    entries: Vec<Entry>,
    /// All names, one after the other.
    names: String,
    /// Indices into `entries`, found by name.
    by_name: NameIndex,
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
    /// All orders of the tables are supported: up to Linux 6.3, since 6.4, and since 7.0.
    ///
    /// # Errors
    /// [`SymbolError`] when the file is not a `vmlinux`, or has no complete table.
    pub fn from_vmlinux(vmlinux: &[u8]) -> Result<Self, SymbolError> {
        let vmlinux = Vmlinux::parse(vmlinux)?;
        let tables = vmlinux
            .contents()
            .find_map(|(start, bytes)| Tables::find(bytes, start));
        Self::expand(&tables.ok_or(SymbolError::NoTable)?)
    }

    /// Reads the symbols of a kernel from its image in memory, at the virtual address `start`.
    /// Their addresses are run-time ones, not link addresses.
    ///
    /// # Errors
    /// [`SymbolError`] when there is no complete table.
    pub fn from_memory(image: &[u8], start: u64) -> Result<Self, SymbolError> {
        Self::expand(&Tables::find(image, start).ok_or(SymbolError::NoTable)?)
    }

    /// Address of the first symbol called `name`.
    pub fn address(&self, name: &str) -> Option<u64> {
        let first = self.named(name).min()?;
        Some(self.entries[first as usize].address)
    }

    /// Address of the symbol called `name` that is visible to other files: there is one at most.
    pub(crate) fn global(&self, name: &str) -> Option<u64> {
        let entry = |index: u32| &self.entries[index as usize];
        let global = self
            .named(name)
            .filter(|&index| entry(index).kind.is_ascii_uppercase());
        global.min().map(|index| entry(index).address)
    }

    /// Indices of all symbols called `name`, in no order.
    fn named(&self, name: &str) -> impl Iterator<Item = u32> {
        self.by_name
            .find(name.as_bytes(), |index| self.name_at(index))
    }

    /// The last symbol at or before an address, of those whose kind `counts`; of several at the same
    /// address the first.
    pub(crate) fn before(&self, address: u64, counts: impl Fn(char) -> bool) -> Option<Symbol<'_>> {
        let end = self
            .entries
            .partition_point(|entry| entry.address <= address);
        let before = self.entries[..end].iter().rev();
        let mut counted = before.filter(|entry| counts(char::from(entry.kind)));
        let last = counted.next()?;
        let same = counted.take_while(|entry| entry.address == last.address);
        Some(self.of_entry(same.last().unwrap_or(last)))
    }

    /// All symbols, in the order of the kernel's table: by address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|entry| self.of_entry(entry))
    }

    fn of_entry(&self, entry: &Entry) -> Symbol<'_> {
        Symbol {
            address: entry.address,
            kind: char::from(entry.kind),
            name: self.name(entry),
        }
    }

    fn name(&self, entry: &Entry) -> &str {
        &self.names[entry.name.start as usize..entry.name.end as usize]
    }

    fn name_at(&self, index: u32) -> &[u8] {
        self.name(&self.entries[index as usize]).as_bytes()
    }

    /// Expands all names.
    fn expand(tables: &Tables<'_>) -> Result<Self, SymbolError> {
        let mut symbols = Self {
            entries: Vec::new(),
            names: String::new(),
            by_name: NameIndex::default(),
        };
        let tokens = tables.tokens();
        let mut expanded = Vec::new();
        for (index, packed) in tables.packed_names().enumerate() {
            expanded.clear();
            for &code in packed {
                expanded.extend_from_slice(tokens[usize::from(code)]);
                if expanded.len() > NAME_MAX {
                    return Err(SymbolError::Malformed("a name is too long"));
                }
            }
            let address = tables
                .address(index)
                .ok_or(SymbolError::Malformed("an address is missing"))?;
            symbols.push(address, &expanded)?;
        }
        let indices = 0..symbols.entries.len() as u32;
        symbols.by_name = NameIndex::new(indices, |index| symbols.name_at(index));
        Ok(symbols)
    }

    /// Adds a symbol: its type and name, as in the table.
    fn push(&mut self, address: u64, kind_and_name: &[u8]) -> Result<(), SymbolError> {
        let Some((&kind, name)) = kind_and_name.split_first() else {
            return Err(SymbolError::Malformed("a symbol has no name"));
        };
        let name =
            str::from_utf8(name).map_err(|_| SymbolError::Malformed("a name is not text"))?;
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

//! Names of code: of the image by its own symbols, of loaded modules by theirs.
//!
//! A module has a region for its code, and another for what only its initialization needs; each is
//! named by the symbols that the kernel keeps of it (`struct mod_kallsyms`, kernel/module/kallsyms.c).
//! All of that is the kernel's to write: lists and tables are read only as far as the limits here.

use super::modules::MODULES_MAX;
use super::{RunningError, RunningKernel};
use crate::memory::PhysicalMemory;

/// Limit on the symbols of a module: the largest have some ten thousands.
const MODULE_SYMBOLS_MAX: u32 = 1 << 17;
/// Longest name that is shown.
const NAME_MAX: usize = 128;
/// `MODULE_NAME_LEN` of include/linux/moduleparam.h.
const MODULE_NAME_MAX: usize = 64 - size_of::<u64>();
/// Size of `Elf64_Sym`, and offsets of its `st_name`, `st_shndx` and `st_value`.
const SYMBOL_SIZE: usize = 24;
const SYMBOL_SECTION: usize = 6;
const SYMBOL_VALUE: usize = 8;

/// A symbol before an address.
type Found = (u64, String);

impl<M: PhysicalMemory + ?Sized> RunningKernel<'_, M> {
    /// Describes a virtual address of code, as the kernel's own `%pS` without the size:
    /// `function+0x12`, in a module `function+0x12 [module]`. `None` if it is no code of this kernel,
    /// or if its memory does not tell.
    #[must_use]
    pub fn describe_code(&self, address: u64) -> Option<String> {
        if self.image.contains(&address) {
            return self.describe_in_image(address);
        }
        self.describe_in_module(address).ok().flatten()
    }

    /// Describes a virtual address of data in the image: `variable+0x12`. `None` if it is none.
    #[must_use]
    pub fn describe_data(&self, address: u64) -> Option<String> {
        let is_inside = self.image.contains(&address);
        is_inside.then(|| self.symbol_before(address, |_| true))?
    }

    fn describe_in_image(&self, address: u64) -> Option<String> {
        self.symbol_before(address, |kind| matches!(kind, 'T' | 't' | 'W' | 'w'))
    }

    /// An address in the image by the last symbol before it of a kind that counts.
    fn symbol_before(&self, address: u64, counts: impl Fn(char) -> bool) -> Option<String> {
        let last = self.symbols.before(address, counts)?;
        if last.address < self.image.start {
            return None;
        }
        let name = printable(last.name.as_bytes(), NAME_MAX)?;
        Some(format!("{name}+{:#x}", address - last.address))
    }

    fn describe_in_module(&self, address: u64) -> Result<Option<String>, RunningError> {
        let list = self.symbol("modules")?;
        let link = self.btf()?.offset_of("module", "list")?;
        let mut entry = self.word(list)?;
        for _ in 0..MODULES_MAX {
            if entry == list {
                break;
            }
            let module = entry.wrapping_sub(link);
            if let Some(start) = self.region_with(module, address)? {
                let name = self.module_name(module)?;
                let symbol = self.module_symbol(module, start, address)?;
                let described = symbol
                    .zip(name)
                    .map(|((at, symbol), name)| format!("{symbol}+{:#x} [{name}]", address - at));
                return Ok(described);
            }
            entry = self.word(entry)?;
        }
        Ok(None)
    }

    /// Start of the module's region of code that contains an address.
    fn region_with(&self, module: u64, address: u64) -> Result<Option<u64>, RunningError> {
        for (base, size) in self.code_regions()? {
            let start = self.word(module.wrapping_add(base))?;
            // The lower half: the member has 32 bits.
            let size = u64::from(self.word(module.wrapping_add(size))? as u32);
            if address.wrapping_sub(start) < size {
                return Ok(Some(start));
            }
        }
        Ok(None)
    }

    /// Offsets in `struct module` of the start and size of each region with code.
    fn code_regions(&self) -> Result<[(u64, u64); 2], RunningError> {
        let btf = self.btf()?;
        // Up to Linux 6.3.
        if let Ok(core) = btf.offset_of("module", "core_layout") {
            let init = btf.offset_of("module", "init_layout")?;
            let base = btf.offset_of("module_layout", "base")?;
            let size = btf.offset_of("module_layout", "size")?;
            return Ok([core, init].map(|layout| (layout + base, layout + size)));
        }
        let all = btf.offset_of("module", "mem")?;
        let each = btf.size_of("module_memory")?;
        let base = btf.offset_of("module_memory", "base")?;
        let size = btf.offset_of("module_memory", "size")?;
        let region = |name| {
            let number = u64::from(btf.enumerator("mod_mem_type", name)?);
            let start = all + number * each;
            Ok::<_, RunningError>((start + base, start + size))
        };
        Ok([region("MOD_TEXT")?, region("MOD_INIT_TEXT")?])
    }

    fn module_name(&self, module: u64) -> Result<Option<String>, RunningError> {
        let at = module.wrapping_add(self.btf()?.offset_of("module", "name")?);
        let mut name = [0; MODULE_NAME_MAX];
        self.read(at, &mut name)?;
        Ok(printable(&name, MODULE_NAME_MAX))
    }

    /// The last symbol of a module from `start` to an address.
    fn module_symbol(
        &self,
        module: u64,
        start: u64,
        address: u64,
    ) -> Result<Option<Found>, RunningError> {
        let btf = self.btf()?;
        let table = self.word(module.wrapping_add(btf.offset_of("module", "kallsyms")?))?;
        let member = |name| {
            let offset = btf.offset_of("mod_kallsyms", name)?;
            self.word(table.wrapping_add(offset))
        };
        // The lower half: the member has 32 bits.
        let count = (member("num_symtab")? as u32).min(MODULE_SYMBOLS_MAX);
        let mut symbols = vec![0; count as usize * SYMBOL_SIZE];
        self.read(member("symtab")?, &mut symbols)?;
        let (all, _) = symbols.as_chunks::<SYMBOL_SIZE>();
        let named = all.iter().filter_map(named_symbol);
        let before = named.filter(|(value, _)| (start..=address).contains(value));
        let Some((value, name)) = before.max_by_key(|&(value, _)| value) else {
            return Ok(None);
        };
        let text = self.text(member("strtab")?.wrapping_add(name.into()))?;
        Ok(text.map(|text| (value, text)))
    }

    /// The text at an address.
    fn text(&self, address: u64) -> Result<Option<String>, RunningError> {
        let table = self.page_table()?;
        let mut text = Vec::new();
        // Byte by byte, since nothing may be mapped behind it.
        while text.len() < NAME_MAX && text.last() != Some(&0) {
            let mut byte = [0];
            table.read(address.wrapping_add(text.len() as u64), &mut byte)?;
            text.extend(byte);
        }
        Ok(printable(&text, NAME_MAX))
    }
}

/// Address of a symbol, and offset of its name; `None` if it has none, or is not defined here.
fn named_symbol(symbol: &[u8; SYMBOL_SIZE]) -> Option<(u64, u32)> {
    let name = crate::bytes::u32_at(symbol, 0)?;
    let section = crate::bytes::u16_at(symbol, SYMBOL_SECTION)?;
    let value = crate::bytes::u64_at(symbol, SYMBOL_VALUE)?;
    (name != 0 && section != 0).then_some((value, name))
}

/// Text up to a zero, cut at a length; `None` unless it can be shown.
fn printable(bytes: &[u8], size_max: usize) -> Option<String> {
    let text = bytes.split(|&byte| byte == 0).next()?;
    let text = &text[..text.len().min(size_max)];
    let shown = !text.is_empty() && text.iter().all(u8::is_ascii_graphic);
    shown.then(|| text.iter().copied().map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_shown_is_a_name() {
        assert_eq!(
            printable(b"start_kernel\0rest", 64).as_deref(),
            Some("start_kernel")
        );
        assert_eq!(printable(b"abcdef", 3).as_deref(), Some("abc"));
        for hostile in [&b""[..], b"\0a", b"a\x1b[2J", b"a b", b"\xff"] {
            assert_eq!(printable(hostile, 64), None, "{hostile:?}");
        }
    }

    #[test]
    fn symbols_without_name_or_place_do_not_count() {
        let mut symbol = [0; SYMBOL_SIZE];
        symbol[SYMBOL_VALUE] = 0x10;
        assert_eq!(named_symbol(&symbol), None);
        symbol[0] = 7;
        assert_eq!(named_symbol(&symbol), None);
        symbol[SYMBOL_SECTION] = 1;
        assert_eq!(named_symbol(&symbol), Some((0x10, 7)));
    }
}

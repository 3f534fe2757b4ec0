//! An ELF `vmlinux` with symbols, types and the variables of the log.

use super::btf;
use super::kallsyms::{self, Order};

/// Link address of `_text`.
pub const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Link address of the data segment.
pub const DATA: u64 = TEXT + 0x20_0000;
/// Link address of `_end`.
pub const END: u64 = DATA + 0x10_0000;
pub const BANNER: &str = "Linux version 6.1.0-test-amd64 (someone@somewhere) #1 SMP\n";
pub const BANNER_ADDRESS: u64 = TEXT + 0x40;
/// Link addresses of variables.
pub const PRB: u64 = DATA + 0x100;
pub const STATIC_RING: u64 = DATA + 0x200;
pub const DYNAMIC_RING: u64 = DATA + 0x300;
pub const PANIC_CPU: u64 = DATA + 0x400;
pub const PAGE_OFFSET_BASE: u64 = DATA + 0x500;
pub const PER_CPU_OFFSET: u64 = DATA + 0x600;
pub const SYSTEM_STATE: u64 = DATA + 0x700;
/// Offset of a structure in the per-CPU area.
pub const IRQ_STAT: u64 = 0x80;
/// Link address of the same, in kernels where it has one.
pub const IRQ_STAT_LINK: u64 = DATA + 0x800;
/// Link address of the static ring's arrays.
pub const STATIC_ARRAYS: u64 = DATA + 0x1000;

/// File offsets and sizes of the segments.
pub const TEXT_OFFSET: usize = 0x1000;
pub const TEXT_SIZE: usize = 0x8000;
pub const DATA_OFFSET: usize = TEXT_OFFSET + TEXT_SIZE;
pub const DATA_SIZE: usize = 0x1000;

/// All symbols, by address: three times as many as there are for one marker, and one with a very
/// long name.
pub fn symbols() -> Vec<(u64, char, String)> {
    let named = |address, kind, name: &str| (address, kind, name.to_owned());
    let mut symbols = vec![
        named(0x40, 'D', "per_cpu_variable"),
        named(IRQ_STAT, 'D', "irq_stat"),
        named(TEXT, 'T', "_text"),
    ];
    symbols.push(named(BANNER_ADDRESS, 'D', "linux_banner"));
    symbols.push((TEXT + 0x80, 't', "long".repeat(100)));
    symbols.extend((0..700).map(|index| (TEXT + 0x100 + index, 't', format!("function_{index}"))));
    symbols.push(named(PRB, 'd', "prb"));
    symbols.push(named(STATIC_RING, 'd', "printk_rb_static"));
    symbols.push(named(DYNAMIC_RING, 'b', "printk_rb_dynamic"));
    symbols.push(named(PANIC_CPU, 'D', "panic_cpu"));
    symbols.push(named(PAGE_OFFSET_BASE, 'D', "page_offset_base"));
    symbols.push(named(PER_CPU_OFFSET, 'D', "__per_cpu_offset"));
    symbols.push(named(SYSTEM_STATE, 'D', "system_state"));
    symbols.push(named(END, 'B', "_end"));
    symbols
}

/// The symbols of a kernel with tables in that order: in the newest, per-CPU variables have link
/// addresses.
pub fn symbols_of(order: Order) -> Vec<(u64, char, String)> {
    let mut symbols = symbols();
    if order == Order::OwnPlace {
        symbols.retain(|symbol| symbol.0 >= TEXT);
        let end = symbols.len() - 1;
        symbols.insert(end, (IRQ_STAT_LINK, 'D', "irq_stat".to_owned()));
    }
    symbols
}

/// The whole file.
pub fn vmlinux(order: Order) -> Vec<u8> {
    let tables = kallsyms::tables(order, TEXT + 0x200, TEXT, &symbols_of(order));
    let types = match order {
        Order::OwnPlace => btf::newer_log_types(),
        _ => btf::log_types(),
    };
    let names = b"\0.BTF\0.shstrtab\0";
    let types_offset = DATA_OFFSET + DATA_SIZE;
    let names_offset = types_offset + types.len();
    let sections_offset = (names_offset + names.len()).next_multiple_of(8);
    let mut file = vec![0; sections_offset];
    put(&mut file, 0, &elf_header(sections_offset as u64));
    put(
        &mut file,
        64,
        &program_header(TEXT_OFFSET, TEXT, TEXT_SIZE, TEXT_SIZE as u64),
    );
    put(
        &mut file,
        64 + 56,
        &program_header(DATA_OFFSET, DATA, DATA_SIZE, END - DATA),
    );
    put(
        &mut file,
        TEXT_OFFSET + (BANNER_ADDRESS - TEXT) as usize,
        BANNER.as_bytes(),
    );
    assert!(0x200 + tables.len() <= TEXT_SIZE);
    put(&mut file, TEXT_OFFSET + 0x200, &tables);
    put(&mut file, types_offset, &types);
    put(&mut file, names_offset, names);
    file.extend([0; 64]);
    file.extend(section_header(1, 1, types_offset, types.len()));
    file.extend(section_header(6, 3, names_offset, names.len()));
    file
}

fn put(file: &mut [u8], offset: usize, bytes: &[u8]) {
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn elf_header(sections_offset: u64) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    for half in [2_u16, 62, 1, 0] {
        header.extend(half.to_le_bytes());
    }
    for word in [0x100_0123_u64, 64, sections_offset] {
        header.extend(word.to_le_bytes());
    }
    for half in [0_u16, 0, 64, 56, 2, 64, 3, 2] {
        header.extend(half.to_le_bytes());
    }
    header
}

fn program_header(offset: usize, address: u64, file_size: usize, memory_size: u64) -> Vec<u8> {
    let physical = address - 0xffff_ffff_8000_0000;
    let words = [
        1 | 7 << 32,
        offset as u64,
        address,
        physical,
        file_size as u64,
        memory_size,
        0x20_0000,
    ];
    words
        .iter()
        .flat_map(|word: &u64| word.to_le_bytes())
        .collect()
}

fn section_header(name: u64, kind: u64, offset: usize, size: usize) -> Vec<u8> {
    let words = [name | kind << 32, 0, 0, offset as u64, size as u64, 0, 1, 0];
    words
        .iter()
        .flat_map(|word: &u64| word.to_le_bytes())
        .collect()
}

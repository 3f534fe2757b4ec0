//! Kernels of distributions, where the testbed has fetched them (`build/kernels/*/boot/vmlinuz-*`).

mod fetched;

use kimage::log::{LogLayout, Placement};
use kimage::running::RunningKernel;
use kimage::{Btf, Format, PhysicalMemory, ReadError, Symbols, inspect, vmlinux};
use object::LittleEndian as LE;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use std::ops::Range;
use std::path::Path;

#[test]
fn everything_can_be_read_from_them() {
    for path in fetched::kernels() {
        println!("{}", path.display());
        check(&path);
    }
}

fn check(path: &Path) {
    let file = std::fs::read(path).unwrap();
    let release = path
        .file_name()
        .unwrap()
        .to_string_lossy()
        .replace("vmlinuz-", "");
    let packed = inspect(&file).unwrap();
    assert_eq!(
        (packed.format, &packed.release),
        (Format::BzImage, &release)
    );
    assert!(packed.segments[0].size < packed.footprint);

    let elf = vmlinux(&file).unwrap();
    let unpacked = inspect(&elf).unwrap();
    assert_eq!(
        (unpacked.format, &unpacked.release),
        (Format::Elf, &release)
    );
    assert_eq!(unpacked.alignment, packed.alignment);
    assert!(unpacked.footprint <= packed.footprint);

    let symbols = Symbols::from_vmlinux(&elf).unwrap();
    assert!(symbols.iter().count() > 50_000);
    let text = symbols.address("_text").unwrap();
    assert_eq!(
        symbols.address("startup_64"),
        Some(text + unpacked.entry_offset)
    );
    assert!(symbols.address("_end").unwrap() - text <= unpacked.footprint);

    let btf = Btf::from_vmlinux(&elf).unwrap();
    assert_eq!(btf.offset_of("list_head", "prev"), Ok(8));
    assert_eq!(
        btf.offset_of("page", "lru.next"),
        btf.offset_of("page", "buddy_list.next")
    );
    assert!(btf.offset_of("task_struct", "comm").unwrap() < btf.size_of("task_struct").unwrap());
    let layout = LogLayout::from_vmlinux(&elf).unwrap();
    // In 6.1 and 6.12 SYSTEM_RUNNING is the fourth state, and SYSTEM_HALT the next.
    let state = |name| btf.enumerator("system_states", name);
    let running = state("SYSTEM_RUNNING").unwrap();
    assert_eq!(state("SYSTEM_HALT"), Ok(running + 1));
    assert!(state("SYSTEM_NONE").is_err() && btf.enumerator("list_head", "prev").is_err());
    let kept = serde_json::to_value(&layout).unwrap();
    assert!(kept["liveness"].is_object(), "it shows no liveness");
    check_in_memory(&elf, &layout, &symbols, &btf);
}

/// Loaded into memory, the kernel's tables are the same as in its file.
fn check_in_memory(elf: &[u8], layout: &LogLayout, symbols: &Symbols, btf: &Btf) {
    let memory = Loaded::new(elf, 0x1_4000_0000);
    let placement = Placement {
        physical: memory.start,
        virtual_offset: 0,
    };
    let kernel = RunningKernel::attach(layout, placement, &memory).unwrap();
    assert!(symbols.iter().eq(kernel.symbols().iter()));
    for name in ["task_struct", "pt_regs", "exception_stacks"] {
        assert_eq!(kernel.btf().unwrap().size_of(name), btf.size_of(name));
    }
    // It has not run yet: no processor, no panic, no VMCOREINFO, page tables without entries.
    assert_eq!(kernel.processors().unwrap(), []);
    assert_eq!(kernel.panicked_processor().unwrap(), None);
    assert_eq!(kernel.vmcoreinfo().unwrap(), None);
    assert!(
        kernel
            .word(kernel.symbol("vmcoreinfo_note").unwrap())
            .is_err()
    );
    assert!(kernel.backtrace_mask().unwrap().0 > memory.start);
    assert_eq!(kernel.direct_map().unwrap() % (1 << 30), 0);
}

/// A kernel's segments at their load addresses.
struct Loaded {
    start: u64,
    bytes: Vec<u8>,
}

impl Loaded {
    fn new(elf: &[u8], start: u64) -> Self {
        let header = FileHeader64::<LE>::parse(elf).unwrap();
        let programs = header.program_headers(LE, elf).unwrap().iter();
        let loaded: Vec<_> = programs
            .filter(|program| program.p_type(LE) == PT_LOAD)
            .collect();
        let first = loaded.iter().map(|one| one.p_paddr(LE)).min().unwrap();
        let end = |one: &&_| ProgramHeader::p_paddr(*one, LE) + ProgramHeader::p_memsz(*one, LE);
        let size = loaded.iter().map(end).max().unwrap() - first;
        let mut bytes = vec![0; size as usize];
        for program in loaded {
            let content = program.data(LE, elf).unwrap();
            let at = (program.p_paddr(LE) - first) as usize;
            bytes[at..at + content.len()].copy_from_slice(content);
        }
        Self { start, bytes }
    }
}

impl PhysicalMemory for Loaded {
    fn ranges(&self) -> Vec<Range<u64>> {
        let all = self.start..self.start + self.bytes.len() as u64;
        std::iter::once(all).collect()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let size = into.len();
        let error = ReadError { address, size };
        let start = address.checked_sub(self.start).ok_or(error)? as usize;
        let from = self.bytes.get(start..start + size).ok_or(error)?;
        into.copy_from_slice(from);
        Ok(())
    }
}

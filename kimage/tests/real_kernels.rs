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
    check_types(&btf);
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

/// From a structure one comes to what its members are and point to.
fn check_types(btf: &Btf) {
    let task = btf.type_named("task_struct").unwrap();
    let (tasks, list) = btf.member_of(task, "tasks").unwrap();
    assert_eq!(
        btf.offset_of("task_struct", "tasks"),
        Ok(tasks.bit_offset / 8)
    );
    let (next, pointer) = btf.member_of(list, "next").unwrap();
    assert_eq!((next.bit_offset, next.bit_size), (0, 64));
    let target = btf.target_of(pointer).unwrap();
    assert_eq!(btf.name_of(target), "list_head");
    assert_eq!(btf.size_of_type(target), Some(16));
    let (_, name) = btf.member_of(task, "comm").unwrap();
    let (character, count) = btf.elements_of(name).unwrap();
    assert_eq!((btf.size_of_type(character), count), (Some(1), 16));
    assert_eq!(btf.target_of(name), None);
    assert_eq!(btf.elements_of(pointer), None);
    assert!(btf.member_of(task, "no.such").is_err());
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
    let panic = symbols.address("panic").unwrap();
    assert_eq!(
        kernel.describe_code(panic + 5).as_deref(),
        Some("panic+0x5")
    );
    // Data, and what is not mapped.
    let data = symbols.address("init_task").unwrap();
    assert!(!kernel.describe_code(data).unwrap().starts_with("init_task"));
    assert_eq!(kernel.describe_code(MODULES), None);
    assert_eq!(kernel.direct_map().unwrap() % (1 << 30), 0);
}

/// A loaded module's code is named by its own symbols, and whatever its tables hold, that ends.
#[test]
fn code_of_modules_is_named() {
    for path in fetched::kernels() {
        let file = std::fs::read(&path).unwrap();
        let elf = vmlinux(&file).unwrap();
        let layout = LogLayout::from_vmlinux(&elf).unwrap();
        let mut memory = Loaded::new(&elf, 0x1_4000_0000);
        let placement = Placement {
            physical: memory.start,
            virtual_offset: 0,
        };
        let module = FakeModule::load(&mut memory, &elf);
        let describe = |memory: &Loaded, address| {
            let kernel = RunningKernel::attach(&layout, placement, memory).unwrap();
            kernel.describe_code(address)
        };
        let told = |address| describe(&memory, address);
        let named = "hostile_access+0x4 [hostile]";
        assert_eq!(told(module.code + 0x24).as_deref(), Some(named));
        assert_eq!(told(module.code + 0x2000), None);
        // Its list leads nowhere, or back to itself; its name is none; it claims more symbols than fit.
        for (at, word) in [
            (module.list, MODULES - (1 << 30)),
            (module.list, module.list),
            (module.name, 0x6d_325b_1b61),
            (module.count, u64::MAX),
        ] {
            let before = memory.word(at);
            memory.put(at, word);
            assert_eq!(describe(&memory, module.code + 0x24_0000), None);
            if at != module.list {
                assert_eq!(describe(&memory, module.code + 0x24), None);
            }
            memory.put(at, before);
        }
    }
}

/// Where kernels without a random placement map modules.
const MODULES: u64 = 0xffff_ffff_c000_0000;
/// Where they map their image.
const IMAGE: u64 = 0xffff_ffff_8100_0000;

/// A module in the memory of a kernel that has not run: virtual addresses of its parts.
struct FakeModule {
    code: u64,
    list: u64,
    name: u64,
    count: u64,
}

impl FakeModule {
    /// Its structure at the start of the area of modules, then what that points to.
    fn load(memory: &mut Loaded, elf: &[u8]) -> Self {
        let symbols = Symbols::from_vmlinux(elf).unwrap();
        let btf = Btf::from_vmlinux(elf).unwrap();
        let of = |structure: &str, member: &str| btf.offset_of(structure, member).unwrap();
        memory.map(symbols.address("init_top_pgt").unwrap());
        let module = Self {
            code: MODULES + 0x10_0000,
            list: MODULES + of("module", "list"),
            name: MODULES + of("module", "name"),
            count: MODULES + 0x8000 + of("mod_kallsyms", "num_symtab"),
        };
        let head = symbols.address("modules").unwrap();
        let (base, size) = match btf.offset_of("module", "core_layout") {
            Ok(layout) => (
                layout + of("module_layout", "base"),
                layout + of("module_layout", "size"),
            ),
            Err(_) => (
                of("module", "mem") + of("module_memory", "base"),
                of("module", "mem") + of("module_memory", "size"),
            ),
        };
        for (at, word) in [
            (head, module.list),
            (module.list, head),
            (module.name, u64::from_le_bytes(*b"hostile\0")),
            (MODULES + base, module.code),
            (MODULES + size, 0x1000),
            (MODULES + of("module", "kallsyms"), MODULES + 0x8000),
            (
                MODULES + 0x8000 + of("mod_kallsyms", "symtab"),
                MODULES + 0x9000,
            ),
            (module.count, 3),
            (
                MODULES + 0x8000 + of("mod_kallsyms", "strtab"),
                MODULES + 0xa000,
            ),
            // Two symbols after the null one: name, section; value.
            (MODULES + 0x9018, 1 | 1 << 48),
            (MODULES + 0x9020, module.code + 0x20),
            (MODULES + 0x9030, 1 | 1 << 48),
            (MODULES + 0x9038, module.code + 0x40),
        ] {
            memory.put(at, word);
        }
        memory.put_bytes(MODULES + 0xa001, b"hostile_access\0");
        module
    }
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

    /// Maps image and modules by the root at `root`: the latter to 2 MiB behind the image, followed by
    /// the tables.
    fn map(&mut self, root: u64) {
        const LARGE: u64 = 2 << 20;
        let image_end = self.bytes.len().next_multiple_of(LARGE as usize);
        self.bytes.resize(image_end + 2 * LARGE as usize, 0);
        let modules = self.start + image_end as u64;
        let tables = modules + LARGE;
        let table = |number: u64| tables + (number << 12);
        let root = root - IMAGE + self.start;
        self.put_at(root + 511 * 8, table(0) | 1);
        self.put_at(table(0) + 510 * 8, table(1) | 1);
        self.put_at(table(0) + 511 * 8, table(2) | 1);
        for page in 0..image_end as u64 / LARGE {
            let entry = (self.start + page * LARGE) | 0x81;
            self.put_at(table(1) + (8 + page) * 8, entry);
        }
        self.put_at(table(2), modules | 0x81);
    }

    /// The physical address of a virtual one, of the image or the modules.
    fn physical(&self, address: u64) -> u64 {
        match address < MODULES {
            true => address - IMAGE + self.start,
            false => address - MODULES + self.start + self.bytes.len() as u64 - (4 << 20),
        }
    }

    fn put(&mut self, address: u64, word: u64) {
        self.put_bytes(address, &word.to_le_bytes());
    }

    fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        let at = (self.physical(address) - self.start) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_at(&mut self, physical: u64, word: u64) {
        let at = (physical - self.start) as usize;
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn word(&self, address: u64) -> u64 {
        let at = (self.physical(address) - self.start) as usize;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())
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

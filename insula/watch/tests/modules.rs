//! A module in a kernel's memory, as its file says, with changes, and where the memory lies.

use insula_watch::{Finding, Kind};
use kimage::reference::{Exports, ModuleFile};
use kimage::running::{LoadedModule, ModuleMemory};
use kimage::unpack_module;
use std::path::{Path, PathBuf};
use synthetic::{HEAP_SIZE, Hostile, Image};

#[path = "../../../kimage/tests/fetched/mod.rs"]
mod fetched;
mod synthetic;

/// A small module, which uses the kernel only, and one of its functions.
const MODULE: &str = "failover";
const FILES: [&str; 2] = [
    "kernel/net/core/failover.ko",
    "kernel/net/core/failover.ko.xz",
];
const FUNCTION: &str = "failover:failover_register+0x";
/// Offsets of its parts in the heap.
const START: u64 = HEAP_SIZE as u64 / 2;
const PARTS: [u64; 4] = [
    START + (1 << 16),
    START + (2 << 16),
    START + (3 << 16),
    START + (4 << 16),
];
const PAGE: u64 = 4096;
const PART_SIZE_MAX: u64 = 1 << 16;
/// Alignment of a `struct module`.
const ALIGN: u64 = 64;
/// Bytes that are changed: more than any place that the kernel patches.
const CHANGED: usize = 16;
const SEEDS: u64 = 4;

#[test]
fn modules_are_compared_with_their_files() {
    for path in fetched::kernels() {
        let mut planted = Planted::new(&path);
        planted.comes_to_an_end();
        planted.changes_are_found();
        planted.another_build_is_not_compared();
    }
}

/// A kernel with a module.
struct Planted {
    image: Image,
    memory: Hostile,
    /// Addresses of the function, of a constant, and of what identifies the build.
    function: u64,
    constant: u64,
    build_id: u64,
}

impl Planted {
    fn new(kernel: &Path) -> Self {
        let mut image = Image::read(kernel);
        let folder = modules_of(kernel);
        image.modules.add(Path::new("/"), &folder);
        let names = FILES.map(|name| folder.join(name));
        let file = names.iter().find_map(|name| std::fs::read(name).ok());
        let file = file.unwrap();
        let file = unpack_module(&file).unwrap();
        let file = ModuleFile::parse(&file).unwrap();
        let mut memory = Hostile::new(&image.vmlinux);
        let loaded = insert(&image, &mut memory, &file);
        let build_id = file.address_of(".note.gnu.build-id", &loaded).unwrap();
        let build_id = build_id.unwrap();
        let note = note_of(&file);
        memory.heap_mut(build_id, note.len()).copy_from_slice(&note);
        let module = {
            let kernel = image.attach(&memory);
            let exports = Exports::new();
            let module = image
                .reference
                .module(&kernel, &loaded, &file, &exports, &[]);
            module.unwrap()
        };
        for part in module.constants.iter().chain([&module.code]) {
            let bytes = part.bytes();
            memory
                .heap_mut(part.range().start, bytes.len())
                .copy_from_slice(bytes);
        }
        let start = format!("{FUNCTION}0");
        let mut code = module.code.range();
        Self {
            function: code.find(|at| module.describe(*at) == start).unwrap(),
            constant: module.constants[0].range().start,
            build_id,
            image,
            memory,
        }
    }

    /// What is loaded is what is in the file; with bytes changed it is not.
    fn changes_are_found(&mut self) {
        assert_eq!(self.changes(), [] as [Finding; 0]);
        self.change(self.function + 0x20);
        self.change(self.constant);
        let found = self.changes();
        let is_code =
            |one: &Finding| one.kind == Kind::CodeChanged && one.subject.starts_with(FUNCTION);
        let is_constant =
            |one: &Finding| one.kind == Kind::ConstantsChanged && one.subject.starts_with(MODULE);
        assert!(found.iter().any(is_code), "{found:?}");
        assert!(found.iter().any(is_constant), "{found:?}");
        let others = |one: &&Finding| !is_code(one) && !is_constant(one);
        assert_eq!(found.iter().find(others), None);
    }

    /// A module of another build than its file is not compared with it, whatever was changed.
    fn another_build_is_not_compared(&mut self) {
        self.change(self.build_id);
        assert_eq!(self.changes(), [] as [Finding; 0]);
    }

    /// The watcher comes to an end whatever the memory says of a module.
    fn comes_to_an_end(&self) {
        for seed in 0..SEEDS {
            let rate = 1 << (4 + 2 * seed);
            self.image
                .look(&self.memory, |memory| memory.lie(seed, rate));
        }
    }

    /// Changes some bytes.
    fn change(&mut self, address: u64) {
        for byte in self.memory.heap_mut(address, CHANGED) {
            *byte ^= 0xff;
        }
    }

    /// What is found about code and constants.
    fn changes(&self) -> Vec<Finding> {
        let mut found = self.image.look(&self.memory, |_| ());
        found.retain(|one| {
            matches!(
                one.kind,
                Kind::CodeChanged | Kind::CallRedirected | Kind::ConstantsChanged
            )
        });
        found
    }
}

/// The folder of the modules of a kernel that was fetched.
fn modules_of(kernel: &Path) -> PathBuf {
    let name = kernel.file_name().unwrap().to_string_lossy();
    let release = name.strip_prefix("vmlinuz-").unwrap();
    let root = kernel.ancestors().nth(2).unwrap();
    root.canonicalize()
        .unwrap()
        .join("lib/modules")
        .join(release)
}

/// The whole section that identifies the build.
fn note_of(file: &ModuleFile<'_>) -> Vec<u8> {
    file.content_of(".note.gnu.build-id").unwrap().to_vec()
}

/// Puts the structure of a module into the heap, and that into the list of modules.
fn insert(image: &Image, memory: &mut Hostile, file: &ModuleFile<'_>) -> LoadedModule {
    let bases = PARTS.map(Hostile::heap_address);
    memory
        .heap_mut(Hostile::heap_address(START), HEAP_SIZE / 2)
        .fill(0);
    let kernel = image.attach(memory);
    let btf = kernel.btf().unwrap();
    let is_one = btf.offset_of("module", "core_layout").is_ok();
    let memory_of = |text_size| match is_one {
        true => ModuleMemory::One {
            base: bases[0],
            text_size,
        },
        false => ModuleMemory::Each { bases, text_size },
    };
    let module = |text_size, address| LoadedModule {
        name: MODULE.to_owned(),
        address,
        is_live: true,
        memory: memory_of(text_size),
        percpu: 0,
    };
    // The structure is in the last part.
    let last = bases[if is_one { 0 } else { 3 }];
    let sizes = (0..PART_SIZE_MAX).step_by(PAGE as usize);
    let addresses = || (last..last + PART_SIZE_MAX).step_by(ALIGN as usize);
    let mut all = sizes.flat_map(|size| addresses().map(move |address| (size, address)));
    let loaded = all.find_map(|(size, address)| {
        let one = module(size, address);
        file.exports(&one).is_ok().then_some(one)
    });
    let loaded = loaded.unwrap();
    let address = loaded.address;
    let size = loaded.memory.text().end - loaded.memory.text().start;
    let member = |path: &str| btf.offset_of("module", path).unwrap();
    let list = member("list");
    let mut words = vec![
        (list, kernel.symbol("modules").unwrap()),
        (list + 8, kernel.symbol("modules").unwrap()),
    ];
    let mut halves = Vec::new();
    if is_one {
        words.push((member("core_layout.base"), bases[0]));
        halves.push((member("core_layout.text_size"), size));
    } else {
        let each = btf.size_of("module_memory").unwrap();
        let base = btf.offset_of("module_memory", "base").unwrap();
        let size_at = btf.offset_of("module_memory", "size").unwrap();
        let kinds = ["MOD_TEXT", "MOD_RODATA", "MOD_RO_AFTER_INIT", "MOD_DATA"];
        for (kind, start) in kinds.into_iter().zip(bases) {
            let number = u64::from(btf.enumerator("mod_mem_type", kind).unwrap());
            words.push((member("mem") + number * each + base, start));
            if kind == "MOD_TEXT" {
                halves.push((member("mem") + number * each + size_at, size));
            }
        }
    }
    let name = member("name");
    drop(kernel);
    for (offset, word) in words {
        let place = memory.heap_mut(address + offset, 8);
        place.copy_from_slice(&word.to_le_bytes());
    }
    for (offset, half) in halves {
        let place = memory.heap_mut(address + offset, 4);
        place.copy_from_slice(&(half as u32).to_le_bytes());
    }
    memory
        .heap_mut(address + name, MODULE.len())
        .copy_from_slice(MODULE.as_bytes());
    let head = [address + list; 2].map(u64::to_le_bytes).concat();
    memory.image_mut("modules", 16).copy_from_slice(&head);
    loaded
}

//! A kernel's image in memory, which may lie.

#![allow(dead_code, reason = "each test uses a part")]

use insula_watch::{Finding, Kernel, ModuleFiles, Rules, Target, Watcher};
use kimage::log::LogLayout;
use kimage::reference::Reference;
use kimage::running::RunningKernel;
use kimage::{PhysicalMemory, ReadError, Symbols};
use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Where the image is, physically; what is mapped of the rest is as large.
const IMAGE: u64 = 1 << 24;
const HEAP: u64 = 1 << 28;
pub(crate) const HEAP_SIZE: usize = 1 << 20;
const TABLES: u64 = 1 << 29;
/// Starts of the direct map and of the image.
const DIRECT: u64 = 0xffff_8880_0000_0000;
const LINK: u64 = 0xffff_ffff_8100_0000;
const LARGE: u64 = 2 << 20;
/// Present, writable, and for a large page.
const TABLE: u64 = 0x3;
const PAGE: u64 = 0x83;
/// Own checks that follow much.
const CHECKS: &str = r#"
[[check]]
name = "parent"
in = "tasks"
when = "real_parent.real_parent.comm != comm || real_parent == 0"
[[check]]
name = "mounted"
in = "super_block.s_list in super_blocks"
when = "s_type.name != s_id"
label = "s_type.name"
[[check]]
name = "module"
in = "modules"
when = "taints & 0x3000 != 0"
"#;

/// The image of a kernel, and what a watcher needs of it.
pub(crate) struct Image {
    pub(crate) vmlinux: Vec<u8>,
    pub(crate) layout: LogLayout,
    pub(crate) reference: Reference,
    pub(crate) rules: Rules,
    pub(crate) modules: ModuleFiles,
}

impl Image {
    pub(crate) fn read(path: &Path) -> Self {
        let file = std::fs::read(path).unwrap();
        let vmlinux = kimage::vmlinux(&file).unwrap().into_owned();
        Self {
            layout: LogLayout::from_vmlinux(&vmlinux).unwrap(),
            reference: Reference::from_vmlinux(&vmlinux).unwrap(),
            vmlinux,
            rules: Rules::parse(CHECKS).unwrap(),
            modules: ModuleFiles::default(),
        }
    }

    /// The kernel's tables, as they are in memory.
    pub(crate) fn attach<'a>(&self, memory: &'a Hostile) -> Kernel<'a> {
        let placement = self.layout.placement(IMAGE, LINK).unwrap();
        memory.lie(0, 0);
        RunningKernel::attach(&self.layout, placement, memory as &dyn PhysicalMemory).unwrap()
    }

    /// What a watcher finds in two looks at the memory. `begin` is called when it has read the
    /// kernel's tables: if these were wrong, hardly anything would be looked at.
    pub(crate) fn look(&self, memory: &Hostile, begin: impl FnOnce(&Hostile)) -> Vec<Finding> {
        let kernel = self.attach(memory);
        assert!(kernel.has_booted().unwrap());
        begin(memory);
        let target = Target {
            kernel: &kernel,
            reference: Some(&self.reference),
            modules: Some(&self.modules),
        };
        let mut time = Duration::ZERO;
        let mut wait = |more: Duration| {
            time += more + Duration::from_secs(1);
            time
        };
        let mut watcher = Watcher::new(self.rules.clone(), &kernel).unwrap();
        watcher.look(&target, &mut wait);
        watcher.look(&target, &mut wait);
        watcher.current().to_vec()
    }
}

/// A kernel's image, and a heap of pointers at random.
pub(crate) struct Hostile {
    symbols: Symbols,
    image: Vec<u8>,
    heap: Vec<u8>,
    tables: Vec<u8>,
    random: Cell<u64>,
    /// One of so many reads has another word in it; none if it is 0.
    rate: Cell<u64>,
}

impl Hostile {
    pub(crate) fn new(vmlinux: &[u8]) -> Self {
        let symbols = Symbols::from_vmlinux(vmlinux).unwrap();
        let loadable = kimage::inspect(vmlinux).unwrap();
        let size = loadable.footprint;
        let mut image = vec![0; size as usize];
        for segment in loadable.segments {
            let (to, from) = (segment.load_offset as usize, segment.file_offset as usize);
            let size = segment.size as usize;
            image[to..to + size].copy_from_slice(&vmlinux[from..from + size]);
        }
        let mut put = |name: &str, offset: u64, value: &[u8]| {
            let at = (symbols.address(name).unwrap() - LINK + offset) as usize;
            image[at..at + value.len()].copy_from_slice(value);
        };
        // It runs, with one processor, whose variables are in the heap.
        put("system_state", 0, &9_u32.to_le_bytes());
        put("nr_cpu_ids", 0, &1_u32.to_le_bytes());
        put("cpus_booted_once_mask", 0, &[1]);
        put("__cpu_online_mask", 0, &[1]);
        put("__per_cpu_offset", 0, &(DIRECT + HEAP).to_le_bytes());
        let entry = |at: u64| (at | TABLE).to_le_bytes();
        put("init_top_pgt", 8 * 511, &entry(TABLES));
        put("init_top_pgt", 8 * 273, &entry(TABLES + 4096));
        let mut tables = vec![0; 3 * 4096];
        let mut map = |table: usize, index: usize, value: u64| {
            let at = table * 4096 + index * 8;
            tables[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        map(0, 510, (TABLES + 2 * 4096) | TABLE);
        map(1, 0, PAGE);
        for index in 0..size.div_ceil(LARGE) {
            map(2, 8 + index as usize, (IMAGE + index * LARGE) | PAGE);
        }
        let mut hostile = Self {
            symbols,
            image,
            heap: Vec::new(),
            tables,
            random: Cell::new(1),
            rate: Cell::new(0),
        };
        let words = (0..HEAP_SIZE / 8).flat_map(|_| hostile.pointer().to_le_bytes());
        hostile.heap = words.collect();
        hostile
    }

    /// The virtual address of a byte of the heap.
    pub(crate) fn heap_address(offset: u64) -> u64 {
        DIRECT + HEAP + offset
    }

    /// Bytes from a virtual address of the heap.
    pub(crate) fn heap_mut(&mut self, address: u64, size: usize) -> &mut [u8] {
        let at = (address - Self::heap_address(0)) as usize;
        &mut self.heap[at..at + size]
    }

    /// Bytes from a symbol of the image.
    pub(crate) fn image_mut(&mut self, symbol: &str, size: usize) -> &mut [u8] {
        let at = (self.symbols.address(symbol).unwrap() - LINK) as usize;
        &mut self.image[at..at + size]
    }

    /// Changes a byte of the image.
    pub(crate) fn change(&mut self, symbol: &str, offset: u64) {
        let at = self.symbols.address(symbol).unwrap() - LINK + offset;
        self.image[at as usize] ^= 0xff;
    }

    /// From now on one of `rate` reads is wrong; none if it is 0.
    pub(crate) fn lie(&self, seed: u64, rate: u64) {
        self.random.set(seed ^ 0x9e37_79b9_7f4a_7c15);
        self.rate.set(rate);
    }

    /// The next number of a simple generator (xorshift64*).
    fn next(&self) -> u64 {
        let mut state = self.random.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Something that a pointer could be.
    fn pointer(&self) -> u64 {
        let random = self.next();
        let inside = ((random >> 8) % (HEAP_SIZE as u64)) & !7;
        match random % 8 {
            0 => 0,
            1 => random,
            2 => inside,
            3 => LINK + inside,
            4 => (DIRECT + HEAP + inside) | 2,
            _ => DIRECT + HEAP + inside,
        }
    }

    fn part(&self, address: u64, size: usize) -> Option<&[u8]> {
        let parts = [
            (IMAGE, &self.image),
            (HEAP, &self.heap),
            (TABLES, &self.tables),
        ];
        parts.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(at..at.checked_add(size)?)
        })
    }
}

impl PhysicalMemory for Hostile {
    fn ranges(&self) -> Vec<Range<u64>> {
        vec![
            IMAGE..IMAGE + self.image.len() as u64,
            HEAP..HEAP + HEAP_SIZE as u64,
        ]
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let size = into.len();
        let part = self
            .part(address, size)
            .ok_or(ReadError { address, size })?;
        into.copy_from_slice(part);
        let rate = self.rate.get();
        if rate != 0 && size >= 8 && self.next().is_multiple_of(rate) {
            let at = (self.next() % (size as u64 / 8)) as usize * 8;
            into[at..at + 8].copy_from_slice(&self.pointer().to_le_bytes());
        }
        Ok(())
    }
}

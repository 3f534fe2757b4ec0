//! A kernel whose code was changed, and one whose memory lies, and changes while it is read.
//!
//! Both are the images of distributions, with page tables, and a heap of pointers at random.

use insula_watch::{Finding, Kernel, Kind, Rules, Target, Watcher};
use kimage::log::LogLayout;
use kimage::reference::Reference;
use kimage::running::RunningKernel;
use kimage::{PhysicalMemory, ReadError, Symbols};
use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

#[path = "../../../kimage/tests/fetched/mod.rs"]
mod fetched;

/// Where the image is, physically; what is mapped of the rest is as large.
const IMAGE: u64 = 1 << 24;
const HEAP: u64 = 1 << 28;
const HEAP_SIZE: usize = 1 << 20;
const TABLES: u64 = 1 << 29;
/// Starts of the direct map and of the image.
const DIRECT: u64 = 0xffff_8880_0000_0000;
const LINK: u64 = 0xffff_ffff_8100_0000;
const LARGE: u64 = 2 << 20;
/// Present, writable, and for a large page.
const TABLE: u64 = 0x3;
const PAGE: u64 = 0x83;
const SEEDS: u64 = 8;
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

/// The watcher always comes to an end.
#[test]
fn whatever_the_memory_says_it_ends() {
    for path in fetched::kernels() {
        let image = Image::read(&path);
        let memory = Hostile::new(&image.vmlinux);
        for seed in 0..SEEDS {
            image.look(&memory, |memory| memory.lie(seed, 1 << (4 + seed % 8)));
        }
    }
}

/// A kernel as it is in its file has the code of that file; with one byte changed it has not.
#[test]
fn a_changed_byte_is_found() {
    for path in fetched::kernels() {
        let image = Image::read(&path);
        let mut memory = Hostile::new(&image.vmlinux);
        assert_eq!(changes(&image.look(&memory, |_| ())), [] as [Finding; 0]);
        memory.change("kernel_halt", 9);
        memory.change("sys_call_table", 8 * 59);
        let found = changes(&image.look(&memory, |_| ()));
        let subjects: Vec<_> = found
            .iter()
            .map(|finding| (finding.kind, finding.subject.as_str()))
            .collect();
        let expected = [
            (Kind::CodeChanged, "kernel_halt+0x9"),
            (Kind::ConstantsChanged, "sys_call_table+0x1d8"),
        ];
        assert_eq!(subjects, expected, "{}", path.display());
    }
}

/// Own checks are evaluated in the kernel's memory, by its types.
#[test]
fn own_checks_are_of_the_kernels_types() {
    for path in fetched::kernels() {
        let image = Image::read(&path);
        let memory = Hostile::new(&image.vmlinux);
        let is_true = [
            r#"init_task:task_struct.comm == "swapper""#,
            r#"init_task:task_struct.comm[0] == 0x73"#,
            r#"system_state:int >= system_states::SYSTEM_RUNNING"#,
            r#"init_task:task_struct.signal.nr_threads > 0 && nr_cpu_ids:int == 1"#,
            r#"init_uts_ns:uts_namespace.name.sysname == "Linux""#,
            r#"shmem_fs_type:file_system_type.name == "tmpfs""#,
            r#"(init_task:task_struct.flags & 0x200000) != 0 || 1"#,
        ];
        let is_false = [
            r#"init_task:task_struct.comm != "swapper""#,
            // Behind a null pointer nothing is equal or unequal to anything.
            r#"init_task:task_struct.mm.pgd.pgd != 1"#,
            r#"init_task:task_struct.mm.pgd.pgd == 1"#,
        ];
        let mut rules = String::new();
        for (index, when) in is_true.iter().chain(&is_false).enumerate() {
            rules.push_str(&format!("[[check]]\nname = '{index}'\nwhen = '{when}'\n"));
        }
        let image = Image {
            rules: Rules::parse(&rules).unwrap(),
            ..image
        };
        let found = image.look(&memory, |_| ());
        let found = found.iter().filter(|one| one.kind == Kind::Check);
        let names: Vec<_> = found.map(|one| one.subject.clone()).collect();
        let expected: Vec<_> = (0..is_true.len()).map(|index| index.to_string()).collect();
        assert_eq!(names, expected, "{}", path.display());
    }
}

/// What the kernel does not have is refused, with a proposal.
#[test]
fn own_checks_that_do_not_fit_are_refused() {
    for path in fetched::kernels() {
        let image = Image::read(&path);
        let memory = Hostile::new(&image.vmlinux);
        let kernel = image.attach(&memory);
        for (walk, when, said) in [
            (
                "tasks",
                "piid == 0",
                "type task_struct has no member piid; did you mean pid?",
            ),
            (
                "tasks",
                "real_parent.com == 0",
                "has no member com; did you mean comm?",
            ),
            ("tasks", "comm == 0", "a text can only be compared"),
            ("tasks", "comm[99] == 0", "there is no element 99"),
            ("tasks", "se == 0", "se is neither a number nor a text"),
            (
                "tasks",
                "init_tasc:task_struct.pid",
                "no variable init_tasc; did you mean init_task?",
            ),
            (
                "tasks",
                "init_task:task_strukt.pid",
                "no type task_strukt; did you mean task_struct?",
            ),
            (
                "tasks",
                "pid == system_states::SYSTEM_WALKING",
                "SYSTEM_WALKING",
            ),
            (
                "super_block.s_lists in super_blocks",
                "1",
                "no member s_lists; did you mean s_list?",
            ),
            (
                "super_block.s_list in super_blogs",
                "1",
                "no variable super_blogs",
            ),
            (
                "super_block.s_root in super_blocks",
                "1",
                "super_block.s_root links no list: it is no struct list_head",
            ),
            (
                "task_struct.sibling.next in init_task",
                "1",
                "task_struct.sibling.next links no list",
            ),
        ] {
            let check = format!("[[check]]\nname = 'a'\nin = '{walk}'\nwhen = '{when}'\n");
            let error = Watcher::new(Rules::parse(&check).unwrap(), &kernel).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("the check 'a' does not fit this kernel"),
                "{error}"
            );
            assert!(error.contains(said), "{when}: {error}");
        }
        let rules = Rules::parse("[[check]]\nname = 'a'\nwhen = 'pid == 0'\n").unwrap();
        let error = Watcher::new(rules, &kernel).unwrap_err().to_string();
        assert!(error.contains("pid is a member of nothing"), "{error}");
    }
}

/// What an own check takes for the head of a list may be none: it is reported, and never repaired.
#[test]
fn own_checks_repair_nothing() {
    for path in fetched::kernels() {
        let image = Image::read(&path);
        let memory = Hostile::new(&image.vmlinux);
        let rules =
            "[[check]]\nname = 'a'\nin = 'super_block.s_list in sys_call_table'\nwhen = '1'\n";
        let image = Image {
            rules: Rules::parse(rules).unwrap(),
            ..image
        };
        let found = image.look(&memory, |_| ());
        let is_it = |one: &&Finding| one.subject.starts_with("sys_call_table");
        let broken = found.iter().find(is_it);
        let broken = broken.unwrap_or_else(|| panic!("{found:?}"));
        assert_eq!((broken.kind, &broken.repair), (Kind::ListCorrupted, &None));
    }
}

/// The image of a kernel, and what a watcher needs of it.
struct Image {
    vmlinux: Vec<u8>,
    layout: LogLayout,
    reference: Reference,
    rules: Rules,
}

impl Image {
    fn read(path: &Path) -> Self {
        let file = std::fs::read(path).unwrap();
        let vmlinux = kimage::vmlinux(&file).unwrap().into_owned();
        Self {
            layout: LogLayout::from_vmlinux(&vmlinux).unwrap(),
            reference: Reference::from_vmlinux(&vmlinux).unwrap(),
            vmlinux,
            rules: Rules::parse(CHECKS).unwrap(),
        }
    }

    /// The kernel's tables, as they are in memory.
    fn attach<'a>(&self, memory: &'a Hostile) -> Kernel<'a> {
        let placement = self.layout.placement(IMAGE, LINK).unwrap();
        memory.lie(0, 0);
        RunningKernel::attach(&self.layout, placement, memory as &dyn PhysicalMemory).unwrap()
    }

    /// What a watcher finds in two looks at the memory. `begin` is called when it has read the
    /// kernel's tables: if these were wrong, hardly anything would be looked at.
    fn look(&self, memory: &Hostile, begin: impl FnOnce(&Hostile)) -> Vec<Finding> {
        let kernel = self.attach(memory);
        assert!(kernel.has_booted().unwrap());
        begin(memory);
        let target = Target {
            kernel: &kernel,
            reference: Some(&self.reference),
            modules: None,
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

/// Those about code and constants.
fn changes(found: &[Finding]) -> Vec<Finding> {
    let of_code = [
        Kind::CodeChanged,
        Kind::CallRedirected,
        Kind::ConstantsChanged,
    ];
    let changes = found.iter().filter(|one| of_code.contains(&one.kind));
    changes.cloned().collect()
}

/// A kernel's image, and a heap of pointers at random.
struct Hostile {
    symbols: Symbols,
    image: Vec<u8>,
    heap: Vec<u8>,
    tables: Vec<u8>,
    random: Cell<u64>,
    /// One of so many reads has another word in it; none if it is 0.
    rate: Cell<u64>,
}

impl Hostile {
    fn new(vmlinux: &[u8]) -> Self {
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

    /// Changes a byte of the image.
    fn change(&mut self, symbol: &str, offset: u64) {
        let at = self.symbols.address(symbol).unwrap() - LINK + offset;
        self.image[at as usize] ^= 0xff;
    }

    /// From now on one of `rate` reads is wrong; none if it is 0.
    fn lie(&self, seed: u64, rate: u64) {
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

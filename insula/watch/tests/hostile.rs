//! A kernel whose code was changed, and one whose memory lies, and changes while it is read.
//!
//! Both are the images of distributions, with page tables, and a heap of pointers at random.

use insula_watch::{Finding, Kind, Rules, Watcher};
use synthetic::{Hostile, Image};

#[path = "../../../kimage/tests/fetched/mod.rs"]
mod fetched;
mod synthetic;

/// Kinds of lies.
const SEEDS: u64 = 8;

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

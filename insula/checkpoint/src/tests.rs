//! Whole folders, as CRIU writes them of a small process, and what is done to them.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use insula_agent::processor::Processor;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const COMMON: u32 = 0x5456_4319;
/// Namespaces of the CRIU that writes them, and those of a container: pid, net, ipc, uts, mount, user,
/// control group, time.
const OUTSIDE: [u64; 8] = [1, 2, 3, 4, 6, 7, 11, 12];
const INSIDE: [u64; 8] = [21, 22, 23, 24, 26, 7, 11, 32];

fn number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn numbers(fields: &[(u64, u64)]) -> Vec<u8> {
    let parts = fields.iter();
    parts
        .flat_map(|(field, value)| [number(field << 3), number(*value)].concat())
        .collect()
}

fn within(field: u64, message: &[u8]) -> Vec<u8> {
    [
        &number(field << 3 | 2)[..],
        &number(message.len() as u64),
        message,
    ]
    .concat()
}

fn ids(namespaces: [u64; 8]) -> Vec<u8> {
    let namespaces = (5..).zip(namespaces);
    let mut fields: Vec<_> = (1..=4).map(|field| (field, 1)).collect();
    fields.extend(namespaces);
    numbers(&fields)
}

fn image(start: &[u32], messages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = start.iter().flat_map(|one| one.to_le_bytes()).collect();
    for message in messages {
        bytes.extend((message.len() as u32).to_le_bytes());
        bytes.extend(message);
    }
    bytes
}

/// A process with a child, dumped from these namespaces.
fn written(namespaces: [u64; 8]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, content: Vec<u8>| fs::write(folder.path().join(name), content).unwrap();
    let inventory = [numbers(&[(1, 2), (2, 1)]), within(3, &ids(OUTSIDE))].concat();
    put("inventory.img", image(&[0x5831_3116], &[inventory]));
    let processes = [
        numbers(&[(1, 7), (2, 0), (3, 7), (4, 7), (5, 7), (5, 8)]),
        numbers(&[(1, 9), (2, 7), (3, 7), (4, 7), (5, 9)]),
    ];
    put("pstree.img", image(&[COMMON, 0x5027_3030], &processes));
    for thread in [7, 8, 9] {
        let core = [numbers(&[(1, 1)]), within(3, &numbers(&[(1, 1)]))].concat();
        put(
            &format!("core-{thread}.img"),
            image(&[COMMON, 0x5505_3847], &[core]),
        );
    }
    for pid in [7, 9] {
        let name = format!("ids-{pid}.img");
        put(&name, image(&[COMMON, 0x5443_2030], &[ids(namespaces)]));
        let ranges = [
            numbers(&[(1, pid)]),
            numbers(&[(1, 0x1000), (2, 2), (4, 4), (5, 2)]),
            numbers(&[(1, 0x9000), (2, 1), (4, 4)]),
        ];
        let name = format!("pagemap-{pid}.img");
        put(&name, image(&[COMMON, 0x5608_4025], &ranges));
        put(&format!("pages-{pid}.img"), vec![pid as u8; 3 * 4096]);
    }
    let files = [numbers(&[(1, 1), (2, 1)]), numbers(&[(1, 20), (2, 2)])];
    put("files.img", image(&[COMMON, 0x5630_3138], &files));
    put("stats-dump", b"left out".to_vec());
    folder
}

fn description() -> Description {
    Description {
        version: Description::version(),
        name: "shop".into(),
        address: Some([10, 78, 255, 1].into()),
        publish: vec!["8080:80".into()],
        command: vec!["/bin/server".into()],
        created_unix_s: 1,
        dumped_unix_s: 2,
        kernel: "6.1".into(),
        output: "pipe:[7]".into(),
        processor: Processor::of_this(),
    }
}

/// A folder as Insula writes it.
fn completed() -> TempDir {
    let folder = written(INSIDE);
    fs::write(folder.path().join("log"), "its log").unwrap();
    Checkpoint::complete(folder.path(), &description()).unwrap();
    folder
}

fn refused(folder: &Path) -> String {
    Checkpoint::open(folder).unwrap_err().to_string()
}

#[test]
fn a_container_reads_back() {
    let folder = completed();
    let read = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(read.description(), Some(&description()));
    assert_eq!(read.form(), Form::Container);
    assert!(!read.has_connections());
    assert_eq!(read.logs().collect::<Vec<_>>(), ["log"]);
    assert_eq!(read.images().count(), 12);
    // `sha256sum -c` agrees.
    let checked = std::process::Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", SUMS])
        .current_dir(folder.path())
        .status();
    assert!(checked.is_ok_and(|status| status.success()));
}

#[test]
fn plain_images_are_a_tree() {
    let folder = written(OUTSIDE);
    fs::write(folder.path().join("tcp-stream-1a.img"), "").unwrap();
    let read = Checkpoint::open(folder.path()).unwrap();
    assert_eq!((read.form(), read.description()), (Form::Tree, None));
    assert!(read.has_connections());
    assert_eq!(read.logs().count(), 0);
}

#[test]
fn processes_lie_in_a_container_of_their_own() {
    let told = refused(written(INSIDE).path());
    assert!(told.contains("`container.json` is missing"), "{told}");
    let mut some = OUTSIDE;
    some[1] = 22;
    let told = refused(written(some).path());
    assert!(told.contains("namespaces of their own"), "{told}");
    // Of a container one process lies outside, or all do.
    for (pids, namespaces) in [(&[9][..], OUTSIDE), (&[7, 9], OUTSIDE)] {
        let folder = written(INSIDE);
        for pid in pids {
            let path = folder.path().join(format!("ids-{pid}.img"));
            fs::write(path, image(&[COMMON, 0x5443_2030], &[ids(namespaces)])).unwrap();
        }
        let error = Checkpoint::complete(folder.path(), &description()).unwrap_err();
        let told = error.to_string();
        assert!(told.contains("not in a container of their own"), "{told}");
    }
}

#[test]
fn what_is_missing_is_told() {
    for name in [
        "inventory.img",
        "pstree.img",
        "core-8.img",
        "ids-9.img",
        "pages-7.img",
    ] {
        let folder = written(OUTSIDE);
        fs::remove_file(folder.path().join(name)).unwrap();
        assert_eq!(refused(folder.path()), format!("{name} is missing"));
    }
    let folder = completed();
    fs::remove_file(folder.path().join(DESCRIPTION)).unwrap();
    refused(folder.path());
    let folder = completed();
    fs::write(folder.path().join("more.img"), "").unwrap();
    let told = refused(folder.path());
    assert!(told.contains("no sum of more.img"), "{told}");
}

#[test]
fn nothing_leads_out_of_the_folder() {
    let outside = tempfile::tempdir().unwrap();
    let real = outside.path().join("real");
    let told = |change: &dyn Fn(&Path)| {
        let folder = written(OUTSIDE);
        fs::copy(folder.path().join("pages-7.img"), &real).unwrap();
        change(folder.path());
        refused(folder.path())
    };
    let replaced = |folder: &Path| fs::remove_file(folder.join("pages-7.img")).unwrap();
    let link = told(&|folder| {
        replaced(folder);
        symlink(&real, folder.join("pages-7.img")).unwrap();
    });
    assert_eq!(link, "pages-7.img is a link");
    let socket = told(&|folder| {
        replaced(folder);
        drop(UnixListener::bind(folder.join("pages-7.img")).unwrap());
    });
    assert_eq!(socket, "pages-7.img is not a plain file");
    let device = told(&|folder| {
        replaced(folder);
        fs::create_dir(folder.join("pages-7.img")).unwrap();
    });
    assert_eq!(device, "pages-7.img is not a plain file");
    let parent = told(&|folder| symlink(outside.path(), folder.join("parent")).unwrap());
    assert!(parent.contains("incremental"), "{parent}");
    let name = told(&|folder| fs::write(folder.join("a\nb.img"), "").unwrap());
    assert!(name.contains("a\\nb.img is no name"), "{name}");
}

#[test]
fn what_is_newer_is_refused() {
    let with = |name: &str, start: &[u32], message: Vec<u8>| {
        let folder = written(OUTSIDE);
        fs::write(folder.path().join(name), image(start, &[message])).unwrap();
        let told = refused(folder.path());
        assert!(told.contains("does not know"), "{name}: {told}");
    };
    let inventory = |fields: &[(u64, u64)]| [numbers(fields), within(3, &ids(OUTSIDE))].concat();
    with("inventory.img", &[0x5831_3116], inventory(&[(1, 3)]));
    with(
        "inventory.img",
        &[0x5831_3116],
        inventory(&[(1, 2), (15, 1)]),
    );
    with(
        "files.img",
        &[COMMON, 0x5630_3138],
        numbers(&[(1, 21), (2, 1)]),
    );
    with(
        "files.img",
        &[COMMON, 0x5630_3138],
        numbers(&[(1, 1), (23, 1)]),
    );
    with("core-8.img", &[COMMON, 0x5505_3847], numbers(&[(1, 3)]));
    let ranges = [numbers(&[(1, 7)]), numbers(&[(1, 0x1000), (2, 1), (3, 1)])];
    let folder = written(OUTSIDE);
    let map = image(&[COMMON, 0x5608_4025], &ranges);
    fs::write(folder.path().join("pagemap-7.img"), map).unwrap();
    assert!(refused(folder.path()).contains("earlier dump"));
}

#[test]
fn huge_numbers_are_refused() {
    for count in [u64::MAX, u64::MAX / 4096, 1 << 40] {
        let folder = written(OUTSIDE);
        let range = numbers(&[(1, 0), (2, 1), (5, count)]);
        let map = image(
            &[COMMON, 0x5608_4025],
            &[numbers(&[(1, 7)]), range.clone(), range],
        );
        fs::write(folder.path().join("pagemap-7.img"), map).unwrap();
        let told = refused(folder.path());
        assert!(told.contains("is damaged"), "{told}");
    }
    let folder = written(OUTSIDE);
    let file = fs::File::create(folder.path().join("files.img")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert!(refused(folder.path()).contains("larger than any"));
}

#[test]
fn another_version_is_told() {
    let folder = written(INSIDE);
    let other = Description {
        version: 2,
        ..description()
    };
    let error = Checkpoint::complete(folder.path(), &other).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

/// Files of a folder, by name.
fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No bit of a folder of Insula's can change, and no end of a file be missing, unnoticed.
    #[test]
    fn each_damage_is_noticed(file: prop::sample::Index, at: prop::sample::Index, bit in 0..9_u8) {
        let folder = completed();
        let names: Vec<_> = files(folder.path()).into_iter().filter(|name| name != "stats-dump").collect();
        let path = folder.path().join(&names[file.index(names.len())]);
        let mut content = fs::read(&path).unwrap();
        let at = at.index(content.len());
        match bit {
            8 => content.truncate(at),
            bit => content[at] ^= 1 << bit,
        }
        fs::write(&path, content).unwrap();
        prop_assert!(Checkpoint::open(folder.path()).is_err(), "{}", path.display());
    }

    /// Whatever plain images say, they are read or refused.
    #[test]
    fn any_plain_images_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let folder = written(OUTSIDE);
        let names = files(folder.path());
        for (file, at, byte) in changes {
            let path = folder.path().join(&names[file.index(names.len())]);
            let mut content = fs::read(&path).unwrap();
            let at = at.index(content.len());
            content[at] = byte;
            fs::write(&path, content).unwrap();
        }
        let _ = Checkpoint::open(folder.path());
    }
}

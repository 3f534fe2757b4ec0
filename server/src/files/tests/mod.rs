//! Tests of file servers: the same calls on one in memory and on this computer's own file system have
//! the same results.

pub(crate) mod cached;
pub(crate) mod calls;
mod linux;
pub(crate) mod mapped;
pub(crate) mod one_file;
pub(crate) mod routed;
pub(crate) mod served;

use std::collections::BTreeMap;

use proptest::prelude::*;

use self::calls::{Calls, Outcome, Step};
use self::linux::Linux;
use self::served::Served;
use crate::Handler;
use crate::files::{FileSystem, Memory};

/// Number of cases of a property: that of PROPTEST_CASES, if it is set.
pub(crate) fn cases(most: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config,
        None => ProptestConfig {
            cases: most,
            ..config
        },
    }
}

/// Plays steps on a server and on this computer. Fails where they differ.
pub(crate) fn are_alike<H: Handler>(
    served: &mut Served<H>,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut linux = Linux::new();
    for (at, step) in steps.iter().enumerate() {
        let (ours, theirs) = (served.play(step), linux.play(step));
        prop_assert_eq!(&ours, &theirs, "step {} {:?}: left is ours", at, step);
    }
    let (ours, theirs) = (tree(served), tree(&mut linux));
    prop_assert_eq!(ours, theirs);
    Ok(())
}

/// Everything below the root: status, and content or names, by path.
pub(crate) fn tree(calls: &mut impl Calls) -> BTreeMap<String, (Outcome, Outcome)> {
    let mut found = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(folder) = left.pop() {
        let Outcome::Names(names) = calls.play(&Step::List(format!("{folder}."))) else {
            continue;
        };
        for name in names.iter().filter(|name| !matches!(&***name, "." | "..")) {
            let path = format!("{folder}{name}");
            let status = calls.play(&Step::Stat(path.clone(), false));
            if is_directory(&status) {
                left.push(format!("{path}/"));
            }
            let content = calls.play(&Step::Content(path.clone()));
            found.insert(path, (status, content));
        }
    }
    found
}

fn is_directory(status: &Outcome) -> bool {
    use nix::libc::{S_IFDIR, S_IFMT};
    matches!(status, Outcome::Status(mode, ..) if mode & S_IFMT == S_IFDIR)
}

fn path() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned),
        1 => prop::sample::select(vec![".", "..", ""]).prop_map(str::to_owned),
    ];
    let names = prop::collection::vec(name, 1..4);
    (names, prop::bool::weighted(0.1)).prop_map(|(names, slash)| {
        let path = names.join("/");
        let path = path.trim_start_matches('/').to_owned();
        // An empty one is the kernel's to refuse, and a walk above the root leaves the mount.
        match path.is_empty() || leaves(&path) {
            true => "a".to_owned(),
            false => path + if slash { "/" } else { "" },
        }
    })
}

/// Whether a path may go above its start, whatever its names are.
fn leaves(path: &str) -> bool {
    path.split('/').any(|name| name == "..")
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let bits = || (0..4_u8, 0..16_u8);
    prop_oneof![
        4 => (path(), bits()).prop_map(|(path, (mode, bits))| Step::Open(path, mode, bits)),
        1 => (0..6_usize).prop_map(Step::Close),
        3 => (0..6_usize, 0..20_000_usize).prop_map(|(file, size)| Step::Read(file, size)),
        3 => (0..6_usize, 1..20_000_usize, any::<u8>())
            .prop_map(|(file, size, byte)| Step::Write(file, size, byte)),
        2 => (0..6_usize, 0..30_000_i64, 0..9000_usize)
            .prop_map(|(file, at, size)| Step::ReadAt(file, at, size)),
        2 => (0..6_usize, 0..30_000_i64, 1..9000_usize, any::<u8>())
            .prop_map(|(file, at, size, byte)| Step::WriteAt(file, at, size, byte)),
        2 => (0..6_usize, -9000..30_000_i64, 0..4_i32)
            .prop_map(|(file, at, whence)| Step::Seek(file, at, whence)),
        1 => (0..6_usize, -1..30_000_i64).prop_map(|(file, size)| Step::Truncate(file, size)),
        1 => (0..6_usize, 0..9000_i64, 0..9000_i64, any::<bool>())
            .prop_map(|(file, at, size, punches)| Step::Allocate(file, at, size, punches)),
        2 => path().prop_map(Step::Mkdir),
        2 => (path(), any::<bool>()).prop_map(|(path, directory)| Step::Unlink(path, directory)),
        3 => (path(), path(), any::<bool>()).prop_map(|(from, to, new)| Step::Rename(from, to, new)),
        1 => (path(), path(), any::<bool>()).prop_map(|(from, to, follows)| Step::Link(from, to, follows)),
        2 => (path(), path()).prop_map(|(target, path)| Step::Symlink(target, path)),
        1 => path().prop_map(Step::ReadLink),
        2 => (path(), any::<bool>()).prop_map(|(path, follows)| Step::Stat(path, follows)),
        1 => (path(), 0..0o7777_u32).prop_map(|(path, mode)| Step::Chmod(path, mode)),
        1 => (path(), 1..2_000_000_000_i64).prop_map(|(path, at)| Step::Touch(path, at)),
        1 => path().prop_map(Step::List),
        1 => (0..6_usize).prop_map(Step::Sync),
    ]
}

proptest! {
    #![proptest_config(cases(400))]
    #[test]
    fn calls_have_linux_results(steps in prop::collection::vec(step(), 1..60)) {
        are_alike(&mut Served::new(), &steps)?;
    }

    /// While the kernel reads shared pages by itself.
    #[test]
    fn calls_have_linux_results_by_shared_pages(steps in prop::collection::vec(step(), 1..60)) {
        are_alike(&mut Served::cached(Memory::new(1 << 30)), &steps)?;
    }

    /// With so little room that pages go, too.
    #[test]
    fn calls_have_linux_results_by_shards(
        steps in prop::collection::vec(step(), 1..60),
        (shards, pages) in (1..4_usize, 1..20_usize),
    ) {
        let mut served = Served::sharded(Memory::new(1 << 30), shards, pages * 4096);
        are_alike(&mut served, &steps)?;
    }

    /// Likewise, while the kernel reads shared pages by itself.
    #[test]
    fn calls_have_linux_results_by_shared_pages_of_shards(
        steps in prop::collection::vec(step(), 1..60),
        (shards, pages) in (1..4_usize, 1..20_usize),
    ) {
        let system = Memory::new(1 << 30);
        let mut served = Served::sharded_and_cached(system, shards, pages * 4096);
        are_alike(&mut served, &steps)?;
    }
}

#[test]
fn room_that_ends_is_told() {
    let mut served = Served::with_room(5 * 4096);
    served.play(&Step::Open("a".into(), 2, 1));
    assert_eq!(
        served.play(&Step::Write(0, 30_000, 7)),
        Outcome::Value(5 * 4096)
    );
    let full = Outcome::Error(nix::libc::ENOSPC);
    assert_eq!(served.play(&Step::Write(0, 1, 7)), full);
    assert_eq!(served.play(&Step::Truncate(0, 4096)), Outcome::Value(0));
    assert_eq!(served.play(&Step::Seek(0, 0, 0)), Outcome::Value(0));
    assert_eq!(
        served.play(&Step::Write(0, 30_000, 7)),
        Outcome::Value(5 * 4096)
    );
}

#[test]
fn shared_pages_are_read_without_asking() {
    let unasked = one_file::play(Memory::new(1 << 30), 100_000);
    assert!(unasked > 1000, "{unasked}");
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_open() {
    let mut served = Served::with_room(4096);
    served.play(&Step::Open("a".into(), 2, 1));
    served.play(&Step::Write(0, 10, 7));
    assert_eq!(
        served.play(&Step::Unlink("a".into(), false)),
        Outcome::Value(0)
    );
    assert_eq!(
        served.play(&Step::ReadAt(0, 0, 10)),
        Outcome::Bytes(vec![7; 10])
    );
    let before = served.free_blocks();
    served.play(&Step::Close(0));
    assert_eq!((before, served.free_blocks()), (0, 1));
}

#[test]
fn links_leave_the_mount_nowhere() {
    let mut served = Served::new();
    served.play(&Step::Mkdir("d".into()));
    for (target, expected) in [
        ("/etc/passwd", nix::libc::EXDEV),
        ("/mnt/served", nix::libc::EXDEV),
        ("/mnt/server/d", 0),
        ("/mnt/server", 0),
        ("../../x", nix::libc::EXDEV),
        ("..", 0),
    ] {
        served.play(&Step::Unlink("d/link".into(), false));
        let made = served.play(&Step::Symlink(target.into(), "d/link".into()));
        assert_eq!(made, Outcome::Value(0));
        let found = match served.play(&Step::Stat("d/link".into(), true)) {
            Outcome::Error(error) => error,
            _ => 0,
        };
        assert_eq!(found, expected, "{target}");
    }
}

/// The thread of names empties a file that a shard has shared: by the time of its reply the kernel knows.
#[test]
fn what_names_change_is_shared_no_more() {
    const EMPTIES: u8 = 4;
    let mut served = Served::sharded_and_cached(Memory::new(1 << 30), 2, 1 << 20);
    let read = |served: &mut Served<_>, size| served.play(&Step::ReadAt(0, 0, size));
    served.play(&Step::Open("a".into(), 2, 1));
    served.play(&Step::Write(0, 5000, 7));
    for _ in 0..2 {
        assert_eq!(read(&mut served, 5000), Outcome::Bytes(vec![7; 5000]));
    }
    assert_eq!(served.unasked_of_shards(), 1);
    served.play(&Step::Open("a".into(), 1, EMPTIES));
    assert_eq!(read(&mut served, 5000), Outcome::Bytes(Vec::new()));
    assert_eq!(served.unasked_of_shards(), 1);
}

/// Each has a file of its own, which it opens, cuts, writes, reads, and unlinks, also while it has it open: by its own
/// memory of it, whatever the others do meanwhile.
#[test]
fn clients_of_shards_do_not_disturb_each_other() {
    const CLIENTS: u64 = 6;
    const ROUNDS: usize = 3000;
    let served = Served::sharded_and_cached(Memory::new(1 << 30), 3, 8 * 4096);
    std::thread::scope(|scope| {
        for number in 1..=CLIENTS {
            let mut client = served.another(number);
            scope.spawn(move || {
                play_alone(&mut client, number, ROUNDS);
                assert!(client.unasked_of_shards() > ROUNDS / 100);
            });
        }
    });
    let mut served = served;
    assert_eq!(tree(&mut served), BTreeMap::new());
    let left = served.end_all().statistics().unwrap();
    assert_eq!(left.free_blocks, left.blocks);
}

fn play_alone<H: Handler>(client: &mut Served<H>, number: u64, rounds: usize) {
    let name = format!("file{number}");
    let mut random = number;
    let mut next = |most: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % most
    };
    let (mut content, mut is_named) = (Vec::new(), false);
    for round in 0..rounds {
        // Reopened now and then, and made again if it has no name.
        if round % 50 == 0 {
            client.close_all();
            if !is_named {
                content.clear();
            }
            client.play(&Step::Open(name.clone(), 2, 1));
            is_named = true;
        }
        let (at, size) = (next(20_000), 1 + next(9000));
        match next(20) {
            0 if is_named => {
                client.play(&Step::Unlink(name.clone(), false));
                is_named = false;
            }
            1 => {
                client.play(&Step::Truncate(0, at as i64));
                content.resize(at, 0);
            }
            2..8 => {
                let byte = next(256) as u8;
                client.play(&Step::WriteAt(0, at as i64, size, byte));
                content.resize(content.len().max(at + size), 0);
                content[at..at + size].fill(byte);
            }
            _ => {
                let end = content.len().min(at + size);
                let expected = content.get(at..end).unwrap_or_default().to_vec();
                let read = client.play(&Step::ReadAt(0, at as i64, size));
                assert_eq!(read, Outcome::Bytes(expected), "{name}, round {round}");
            }
        }
    }
    client.close_all();
    if is_named {
        client.play(&Step::Unlink(name, false));
    }
}

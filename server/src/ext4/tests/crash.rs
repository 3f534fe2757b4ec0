//! Crashes: what was synced is there, and the file system is clean, whatever of the rest was lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{CACHE, mount, tools};
use crate::block::recorder::{Random, Recorder};
use crate::ext4::Ext4;
use crate::files::FileSystem;
use crate::files::Files;
use crate::files::tests::calls::{Calls, Outcome, Step};
use crate::files::tests::served::Served;
use crate::files::tests::{cases, step, tree};

/// All files: status, content, and inode.
type Tree = BTreeMap<String, (Outcome, Outcome, Option<u64>)>;

fn tree_of(served: &mut Served<Files<Ext4<Recorder>>>) -> Tree {
    let found = tree(served).into_iter();
    let with_inode = found.map(|(path, (status, content))| {
        let inode = served.inode(&path);
        (path, (status, content, inode))
    });
    with_inode.collect()
}

/// Plays steps. Returns what was there at each sync, and how many events there were then.
fn play(device: &Recorder, steps: &[Step]) -> Vec<(usize, Tree)> {
    let system = Ext4::mount(device.clone(), CACHE).unwrap();
    let mut served = Served::on(system);
    let mut synced = vec![(device.events(), tree_of(&mut served))];
    for step in steps {
        let result = served.play(step);
        if matches!((step, result), (Step::Sync(_), Outcome::Value(0))) {
            synced.push((device.events(), tree_of(&mut served)));
        }
    }
    served.system().sync(0, false).unwrap();
    synced.push((device.events(), tree_of(&mut served)));
    synced
}

/// Whether a tree has all names and attributes of another one, and its content: but what was written in
/// place may be there already, as of `later`.
fn is_state(found: &Tree, synced: &Tree, later: Option<&Tree>, block: usize) -> bool {
    let is_file = |path: &String| {
        let (status, content, inode) = &synced[path];
        let (found_status, found_content, found_inode) = &found[path];
        if (status, inode) != (found_status, found_inode) {
            return false;
        }
        let (Outcome::Bytes(bytes), Outcome::Bytes(found)) = (content, found_content) else {
            return content == found_content;
        };
        let by_inode = |tree: &Tree| {
            let same = tree.values().find(|(.., other)| other == inode)?;
            match &same.1 {
                Outcome::Bytes(bytes) => Some(bytes.clone()),
                _ => None,
            }
        };
        let mut later = later.and_then(by_inode).unwrap_or_else(|| bytes.clone());
        later.resize(bytes.len(), 0);
        let blocks = found
            .chunks(block)
            .zip(bytes.chunks(block).zip(later.chunks(block)));
        found.len() == bytes.len() && { blocks }.all(|(it, (old, new))| it == old || it == new)
    };
    found.keys().eq(synced.keys()) && synced.keys().all(is_file)
}

/// Fails unless an image has what was synced last before a crash, or first behind it.
fn has_synced(
    system: Ext4<Recorder>,
    (synced, next): (&Tree, Option<&Tree>),
    block: usize,
) -> Result<Vec<u8>, String> {
    let mut served = Served::on(system);
    let found = tree_of(&mut served);
    let is_next = next.is_some_and(|next| is_state(&found, next, None, block));
    if !is_next && !is_state(&found, synced, next, block) {
        return Err(format!("found {found:?}\nsynced {synced:?}\nnext {next:?}"));
    }
    Ok(served.end().unmount().unwrap().content())
}

fn survives(image: &[u8], states: (&Tree, Option<&Tree>), block: usize) -> Result<(), String> {
    let by_linux = tools::File::new(image);
    by_linux.recover()?;
    has_synced(mount(&by_linux.content()), states, block)?;
    let device = Recorder::new(image);
    let ours = Ext4::mount(device, CACHE).map_err(|error| error.to_string())?;
    let by_us = has_synced(ours, states, block)?;
    tools::File::new(&by_us).is_clean()
}

proptest! {
    #![proptest_config(cases(40))]
    #[test]
    fn what_was_synced_survives(
        steps in prop::collection::vec(prop_oneof![9 => step(), 1 => (0..3_usize).prop_map(Step::Sync)], 1..80),
        variant in 0..tools::VARIANTS.len(),
        seed in any::<u64>(),
    ) {
        if tools::are_here() {
            let device = Recorder::new(&tools::empty(variant));
            let synced = play(&device, &steps);
            let mut random = Random(seed | 1);
            for _ in 0..3 {
                let point = synced[0].0 + random.next() as usize % (device.events() + 1 - synced[0].0);
                let last = synced.iter().rposition(|(events, _)| *events <= point).unwrap();
                let states = (&synced[last].1, synced.get(last + 1).map(|(_, tree)| tree));
                let block = tools::block_size(variant);
                let image = device.after_crash(point, block, random.next());
                survives(&image, states, block).map_err(TestCaseError::fail)?;
            }
        }
    }

    /// A crash while a file system is repaired, or mounted.
    #[test]
    fn a_crash_while_the_journal_is_replayed_loses_nothing(
        steps in prop::collection::vec(step(), 1..40),
        variant in 0..tools::VARIANTS.len(),
        seed in any::<u64>(),
    ) {
        if tools::are_here() {
            let device = Recorder::new(&tools::empty(variant));
            let synced = play(&device, &steps);
            let mut random = Random(seed | 1);
            let block = tools::block_size(variant);
            let again = Recorder::new(&device.after_crash(device.events(), block, random.next()));
            drop(Ext4::mount(again.clone(), CACHE).unwrap());
            let point = random.next() as usize % (again.events() + 1);
            let image = again.after_crash(point, block, random.next());
            let last = &synced.last().unwrap().1;
            survives(&image, (last, None), block).map_err(TestCaseError::fail)?;
        }
    }

    /// A device that fails: calls fail, and nothing is changed any more.
    #[test]
    fn what_was_synced_survives_a_failing_device(
        steps in prop::collection::vec(step(), 20..60),
        variant in 0..tools::VARIANTS.len(),
        left in 0..60_u64,
    ) {
        if tools::are_here() {
            let device = Recorder::new(&tools::empty(variant));
            let mut served = Served::on(Ext4::mount(device.clone(), CACHE).unwrap());
            device.fail_after(left);
            for step in &steps {
                served.play(step);
                served.play(&Step::Sync(0));
            }
            let failed = served.system().sync(0, false).is_err();
            let refused = served.play(&Step::Mkdir("new".into()));
            prop_assert!(!failed || refused == Outcome::Error(nix::libc::EROFS));
            let file = tools::File::new(&device.content());
            file.recover().map_err(TestCaseError::fail)?;
        }
    }
}

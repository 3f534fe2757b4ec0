//! What the journal promises, each shown by the crash that would break it.

use super::{CACHE, mount, tools};
use crate::block::recorder::Recorder;
use crate::ext4::Ext4;
use crate::files::FileSystem;
use crate::files::Files;
use crate::files::tests::calls::{Calls, Outcome, Step};
use crate::files::tests::served::Served;

/// What each block of the journal's own begins with.
const MAGIC: [u8; 4] = 0xc03b_3998_u32.to_be_bytes();
/// Opens a file for reading and writing, and creates it.
const CREATE: (u8, u8) = (2, 1);

/// An empty file system on a device, in use.
struct Played {
    device: Recorder,
    served: Served<Files<Ext4<Recorder>>>,
    block: usize,
}

impl Played {
    fn new(variant: usize) -> Self {
        let device = Recorder::new(&tools::empty(variant));
        let system = Ext4::mount(device.clone(), CACHE).unwrap();
        Self {
            device,
            served: Served::on(system),
            block: tools::block_size(variant),
        }
    }

    fn play(&mut self, step: Step) -> Outcome {
        self.served.play(&step)
    }

    fn does(&mut self, step: Step) {
        let outcome = self.play(step.clone());
        assert!(
            matches!(outcome, Outcome::Value(_)),
            "{step:?}: {outcome:?}"
        );
    }

    fn sync(&mut self) {
        self.served.system().sync(0, false).unwrap();
    }

    /// Creates a file of a byte, as its n-th open one.
    fn fill(&mut self, nth: usize, path: &str, blocks: u64, byte: u8) {
        self.does(Step::Open(path.into(), CREATE.0, CREATE.1));
        for at in 0..blocks as i64 {
            let block = self.block;
            self.does(Step::WriteAt(nth, at * block as i64, block, byte));
        }
    }
}

/// Mounts what a crash has left, and asks e2fsck as well. Returns what is there.
fn recovered(image: &[u8]) -> Served<Files<Ext4<Recorder>>> {
    let by_linux = tools::File::new(image);
    by_linux.recover().unwrap();
    let ours = Served::on(mount(image)).end().unmount().unwrap();
    tools::File::new(&ours.content()).is_clean().unwrap();
    Served::on(mount(image))
}

/// Without a flush before it, a commit block could vouch for blocks that were never written.
#[test]
fn a_commit_block_is_written_when_its_transaction_is_durable() {
    if !tools::are_here() {
        return;
    }
    for variant in 0..tools::VARIANTS.len() {
        let mut played = Played::new(variant);
        let (before, block) = (played.device.events(), played.block);
        for index in 0..40 {
            played.does(Step::Mkdir(format!("directory-{index}")));
        }
        played.sync();
        for events in before..=played.device.events() {
            // The journal's own blocks arrive, what is between them does not.
            let is_own = |_: usize, bytes: &[u8]| bytes.starts_with(&MAGIC);
            let image = played.device.after_crash_with(events, block, is_own);
            let found = recovered(&image).play(&Step::List(".".into()));
            let Outcome::Names(names) = found else {
                panic!("{found:?}");
            };
            assert!(matches!(names.len(), 2 | 42), "after {events}: {names:?}");
        }
    }
}

/// A block that has become a file's is not overwritten by what the journal has of its time in a directory.
#[test]
fn metadata_of_freed_blocks_are_not_replayed() {
    if !tools::are_here() {
        return;
    }
    for variant in 0..tools::VARIANTS.len() {
        let mut played = Played::new(variant);
        played.does(Step::Mkdir("large".into()));
        let names = || (0..100).map(|index| format!("large/{index:0>200}"));
        names().for_each(|name| played.does(Step::Symlink("target".into(), name)));
        played.sync();
        names().for_each(|name| played.does(Step::Unlink(name, false)));
        played.does(Step::Unlink("large".into(), true));
        played.sync();
        // All that is free: so the directory's blocks, too.
        let blocks = played.served.free_blocks() - 64;
        played.fill(0, "file", blocks, b'x');
        played.sync();
        let events = played.device.events();
        let image = played.device.after_crash_with(events, 512, |_, _| true);
        let mut found = recovered(&image);
        found.play(&Step::Open("file".into(), 0, 0));
        for at in 0..blocks as i64 {
            let read = found.play(&Step::ReadAt(0, at * played.block as i64, played.block));
            let expected = Outcome::Bytes(vec![b'x'; played.block]);
            assert_eq!(read, expected, "block {at} of variant {variant}");
        }
    }
}

/// Until a file's end is committed a crash brings it back, with its content.
#[test]
fn blocks_are_used_again_when_their_end_is_committed() {
    if !tools::are_here() {
        return;
    }
    for variant in 0..tools::VARIANTS.len() {
        let mut played = Played::new(variant);
        played.fill(0, "old", 300, b'o');
        played.does(Step::Close(0));
        played.sync();
        let before = played.device.events();
        played.does(Step::Unlink("old".into(), false));
        played.fill(1, "new", 300, b'n');
        played.sync();
        let mut came_back = 0;
        for events in before..=played.device.events() {
            let image = played.device.after_crash_with(events, 512, |_, _| true);
            match recovered(&image).play(&Step::Content("old".into())) {
                Outcome::Bytes(bytes) => {
                    came_back += 1;
                    assert!(bytes.iter().all(|byte| *byte == b'o'), "after {events}");
                }
                outcome => assert_eq!(outcome, Outcome::Error(nix::libc::ENOENT)),
            }
        }
        assert!(
            came_back > 1,
            "variant {variant}: new content came before the commit"
        );
    }
}

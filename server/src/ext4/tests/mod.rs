//! Tests on file systems that mke2fs has made. e2fsck says whether they are clean, debugfs what is there.

mod crash;
mod hostile;
mod journal;
mod large;
mod made;
mod tools;

use nix::errno::Errno;
use proptest::prelude::*;

use super::Ext4;
use crate::block::recorder::Recorder;
use crate::block::{Access, BlockDevice, DeviceError};
use crate::files::tests::calls::{Calls, Outcome, Step};
use crate::files::tests::served::Served;
use crate::files::tests::{are_alike, cases, mapped, one_file, step};

/// Bytes of a cache that is small enough to be full.
const CACHE: usize = 256 << 10;

fn mount(image: &[u8]) -> Ext4<Recorder> {
    Ext4::mount(Recorder::new(image), CACHE).unwrap()
}

proptest! {
    #![proptest_config(cases(80))]
    /// The same property as that of the file system in memory.
    #[test]
    fn calls_have_linux_results(
        steps in prop::collection::vec(step(), 1..60),
        variant in 0..tools::VARIANTS.len(),
    ) {
        if tools::are_here() {
            let mut served = Served::on(mount(&tools::empty(variant)));
            are_alike(&mut served, &steps)?;
            let image = served.end().unmount().unwrap().content();
            tools::File::new(&image).is_clean().map_err(TestCaseError::fail)?;
        }
    }

    /// While the kernel reads shared pages by itself.
    #[test]
    fn calls_have_linux_results_by_shared_pages(
        steps in prop::collection::vec(step(), 1..60),
        variant in 0..tools::VARIANTS.len(),
    ) {
        if tools::are_here() {
            are_alike(&mut Served::cached(mount(&tools::empty(variant))), &steps)?;
        }
    }

    /// Likewise, by shards, with so little room that pages go, too.
    #[test]
    fn calls_have_linux_results_by_shards(
        steps in prop::collection::vec(step(), 1..60),
        (variant, shards) in (0..tools::VARIANTS.len(), 1..4_usize),
    ) {
        if tools::are_here() {
            let system = mount(&tools::empty(variant));
            let mut served = Served::sharded_and_cached(system, shards, 16 << 10);
            are_alike(&mut served, &steps)?;
            let image = served.end_all().unmount().unwrap().content();
            tools::File::new(&image).is_clean().map_err(TestCaseError::fail)?;
        }
    }
}

#[test]
fn shared_pages_are_read_without_asking() {
    if tools::are_here() {
        let whole = one_file::play(mount(&tools::empty(0)), CACHE / 4);
        assert!(whole > 1000, "{whole}");
        // Most pages are dropped before they are read again.
        let parts = one_file::play(mount(&tools::empty(0)), 4 * CACHE);
        assert!((1..whole).contains(&parts), "{parts}");
    }
}

/// From the device by few accesses, and by the kernel without a request for each page.
#[test]
fn what_is_read_in_order_is_read_ahead() {
    const PAGES: usize = 100;
    if !tools::are_here() {
        return;
    }
    let mut written = Served::on(mount(&tools::empty(0)));
    written.play(&Step::Open("a".into(), 2, 1));
    written.play(&Step::Write(0, PAGES * 4096, 7));
    let image = written.end().unmount().unwrap().content();
    let device = Recorder::new(&image);
    let mut served = Served::cached(Ext4::mount(device.clone(), 4 << 20).unwrap());
    served.play(&Step::Open("a".into(), 0, 0));
    let before = device.reads();
    for _ in 0..PAGES {
        let page = served.play(&Step::Read(0, 4096));
        assert_eq!(page, Outcome::Bytes(vec![7; 4096]));
    }
    let (reads, asked) = (device.reads() - before, PAGES - served.unasked());
    assert!(
        reads < 10 && asked < 10,
        "{reads} accesses, {asked} requests"
    );
}

/// A device that reads no more than a block at once.
#[derive(Debug)]
struct BlockByBlock(Recorder);

impl BlockDevice for BlockByBlock {
    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn block_count(&self) -> u64 {
        self.0.block_count()
    }

    fn read(&mut self, block: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        match to.len() > 4096 {
            true => Err(DeviceError {
                access: Access::Read(block),
                errno: Errno::EIO,
            }),
            false => self.0.read(block, to),
        }
    }

    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.0.write(block, from)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.0.flush()
    }
}

/// What could not be read ahead is read when it is asked for.
#[test]
fn reading_ahead_may_fail() {
    if !tools::are_here() {
        return;
    }
    let mut written = Served::on(mount(&tools::empty(0)));
    written.play(&Step::Open("a".into(), 2, 1));
    written.play(&Step::Write(0, 100_000, 7));
    let image = written.end().unmount().unwrap().content();
    let device = BlockByBlock(Recorder::new(&image));
    let mut served = Served::on(Ext4::mount(device, 4 << 20).unwrap());
    let content = served.play(&Step::Content("a".into()));
    assert_eq!(content, Outcome::Bytes(vec![7; 100_000]));
}

#[test]
fn mapped_files_are_right() {
    if !tools::are_here() {
        return;
    }
    mapped::play(|| mount(&tools::empty(0)));
    let (system, content) = mapped::is_right_after_random_calls(mount(&tools::empty(0)), 1500);
    let image = system.unmount().unwrap().content();
    tools::File::new(&image).is_clean().unwrap();
    let found = Served::on(mount(&image)).play(&Step::Content("a".into()));
    assert_eq!(found, Outcome::Bytes(content));
}

/// With a file that was stored to and cut while it was mapped, a crash leaves what was synced, as the end of the mapping would.
#[test]
fn a_crash_cuts_what_was_mapped() {
    if !tools::are_here() {
        return;
    }
    let device = Recorder::new(&tools::empty(0));
    let mut served = Served::cached(Ext4::mount(device.clone(), CACHE).unwrap());
    served.play(&Step::Open("a".into(), 2, 1));
    served.play(&Step::Write(0, 40_000, 7));
    let inode = served.inode("a").unwrap();
    served.map(0, 1, (0, 40_960));
    mapped::page(&mut served, inode, 1).unwrap()[0] = 9;
    served.play(&Step::Truncate(0, 5000));
    served.play(&Step::Sync(0));
    mapped::page(&mut served, inode, 1).unwrap()[1] = 8;
    assert_eq!(served.synchronize(1), Outcome::Value(0));
    let image = device.after_crash(device.events(), 4096, 1);
    let mut expected = vec![7; 5000];
    expected[4096..4098].copy_from_slice(&[9, 8]);
    let file = tools::File::new(&image);
    file.recover().unwrap();
    for image in [file.content(), image] {
        let ours = Served::on(mount(&image)).end().unmount().unwrap();
        tools::File::new(&ours.content()).is_clean().unwrap();
        let found = Served::on(mount(&ours.content())).play(&Step::Content("a".into()));
        assert_eq!(found, Outcome::Bytes(expected.clone()));
    }
}

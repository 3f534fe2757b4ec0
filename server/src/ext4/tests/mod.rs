//! Tests on file systems that mke2fs has made. e2fsck says whether they are clean, debugfs what is there.

mod crash;
mod hostile;
mod journal;
mod large;
mod made;
mod tools;

use proptest::prelude::*;

use super::Ext4;
use crate::block::recorder::Recorder;
use crate::files::tests::served::Served;
use crate::files::tests::{are_alike, cases, one_file, step};

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

    /// By shards, with so little room that pages go, too.
    #[test]
    fn calls_have_linux_results_by_shards(
        steps in prop::collection::vec(step(), 1..60),
        (variant, shards) in (0..tools::VARIANTS.len(), 1..4_usize),
    ) {
        if tools::are_here() {
            let system = mount(&tools::empty(variant));
            let mut served = Served::sharded(system, shards, 16 << 10);
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

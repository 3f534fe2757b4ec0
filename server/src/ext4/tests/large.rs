//! Large files and directories, deep extent trees, and a full device.

use super::{mount, tools};
use crate::block::recorder::Recorder;
use crate::ext4::Ext4;
use crate::files::Files;
use crate::files::tests::calls::{Calls, Outcome, Step};
use crate::files::tests::served::Served;

/// Unmounts, and fails unless e2fsck finds nothing.
fn end(served: Served<Files<Ext4<Recorder>>>) {
    let image = served.end().unmount().unwrap().content();
    tools::File::new(&image).is_clean().unwrap();
}

/// Plays steps, which must succeed.
fn play(served: &mut impl Calls, steps: &[Step]) {
    for step in steps {
        let result = served.play(step);
        assert!(!matches!(result, Outcome::Error(_)), "{step:?}: {result:?}");
    }
}

#[test]
fn trees_grow_and_shrink() {
    if !tools::are_here() {
        return;
    }
    for variant in 0..tools::VARIANTS.len() {
        let block = tools::block_size(variant) as i64;
        let mut served = Served::on(mount(&tools::empty(variant)));
        let before = served.free_blocks();
        play(&mut served, &[Step::Open("a".into(), 2, 1)]);
        // Every other block, so that no two are one extent.
        let blocks = || (0..600).map(|at| at * 2 * block);
        let write = blocks().map(|at| Step::WriteAt(0, at, 10, 7));
        play(&mut served, &write.collect::<Vec<_>>());
        let tail = Step::ReadAt(0, 599 * 2 * block, 100);
        assert_eq!(served.play(&tail), Outcome::Bytes(vec![7; 10]));
        let punch = blocks().skip(1).step_by(2);
        let punch = punch.map(|at| Step::Allocate(0, at, block, true));
        play(&mut served, &punch.collect::<Vec<_>>());
        let fill = blocks().map(|at| Step::WriteAt(0, at + block / 2, block as usize, 9));
        play(&mut served, &fill.collect::<Vec<_>>());
        let expected = Outcome::Bytes(vec![9; block as usize]);
        let read = Step::ReadAt(0, 500 * block + block / 2, block as usize);
        assert_eq!(served.play(&read), expected);
        play(
            &mut served,
            &[Step::Truncate(0, 100 * block + 5), Step::Sync(0)],
        );
        play(&mut served, &[Step::Truncate(0, 0), Step::Sync(0)]);
        assert_eq!(served.free_blocks(), before);
        end(served);
    }
}

#[test]
fn unwritten_blocks_are_zeros_until_they_are_written() {
    if !tools::are_here() {
        return;
    }
    for variant in 0..tools::VARIANTS.len() {
        let mut served = Served::on(mount(&tools::empty(variant)));
        play(
            &mut served,
            &[
                Step::Open("a".into(), 2, 1),
                Step::Allocate(0, 0, 1_000_000, false),
                Step::WriteAt(0, 500_000, 10, 7),
                Step::WriteAt(0, 0, 10, 8),
                Step::WriteAt(0, 999_990, 10, 9),
            ],
        );
        let Outcome::Bytes(bytes) = served.play(&Step::Content("a".into())) else {
            panic!("no content");
        };
        let written: Vec<_> = bytes.iter().filter(|byte| **byte != 0).collect();
        assert_eq!((bytes.len(), written.len()), (1_000_000, 30));
        assert_eq!((bytes[0], bytes[500_009], bytes[999_999]), (8, 7, 9));
        end(served);
    }
}

#[test]
fn room_that_ends_is_told() {
    if !tools::are_here() {
        return;
    }
    for variant in 0..tools::VARIANTS.len() {
        let mut served = Served::on(mount(&tools::empty(variant)));
        play(
            &mut served,
            &[Step::Mkdir("d".into()), Step::Open("a".into(), 2, 1)],
        );
        let full = Outcome::Error(nix::libc::ENOSPC);
        let mut written = 0;
        while let Outcome::Value(more) = served.play(&Step::Write(0, 1 << 20, 7)) {
            written += more;
        }
        assert!(written > 8 << 20, "{written}");
        assert_eq!(served.play(&Step::Mkdir("d/e".into())), full);
        assert_eq!(served.play(&Step::Write(0, 1 << 20, 7)), full);
        // What is freed can be used at once.
        play(
            &mut served,
            &[Step::Truncate(0, 1 << 20), Step::Mkdir("d/e".into())],
        );
        let mut made = 0;
        while served.play(&Step::Symlink("t".into(), format!("d/{made}"))) == Outcome::Value(0) {
            made += 1;
        }
        assert!(made > 100, "{made} inodes");
        end(served);
    }
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_open() {
    if !tools::are_here() {
        return;
    }
    let mut served = Served::on(mount(&tools::empty(0)));
    let before = served.free_blocks();
    let names = ["a", "b", "c"].map(String::from);
    for name in &names {
        play(&mut served, &[Step::Open(name.clone(), 2, 1)]);
    }
    for (file, name) in names.iter().enumerate() {
        play(
            &mut served,
            &[
                Step::Write(file, 9000, 7),
                Step::Unlink(name.clone(), false),
                Step::Sync(file),
                Step::Write(file, 9000, 8),
            ],
        );
    }
    // From the middle of the list of orphans, its end and its begin.
    for file in [1, 0, 2] {
        let expected = Outcome::Bytes([[7; 5], [8; 5]].concat());
        assert_eq!(served.play(&Step::ReadAt(file, 8995, 10)), expected);
        play(&mut served, &[Step::Close(file), Step::Sync(2)][..1]);
    }
    assert_eq!(served.free_blocks(), before);
    end(served);
}

#[test]
fn files_beyond_four_gib_are_sparse() {
    if !tools::are_here() {
        return;
    }
    let mut served = Served::on(mount(&tools::empty(0)));
    let far = 1_i64 << 43;
    play(
        &mut served,
        &[
            Step::Open("a".into(), 2, 1),
            Step::WriteAt(0, far, 10, 7),
            Step::WriteAt(0, 1 << 33, 10, 8),
        ],
    );
    assert_eq!(
        served.play(&Step::ReadAt(0, far + 5, 100)),
        Outcome::Bytes(vec![7; 5])
    );
    assert_eq!(
        served.play(&Step::ReadAt(0, 1 << 34, 3)),
        Outcome::Bytes(vec![0; 3])
    );
    let beyond = served.play(&Step::WriteAt(0, 1 << 44, 10, 7));
    assert_eq!(beyond, Outcome::Error(nix::libc::EFBIG));
    assert!(served.system().commit_if_due().is_ok());
    end(served);
}

//! What others have made is read, and what was written is read by others.

use super::{mount, tools};
use crate::files::tests::calls::{Calls, Outcome, Step};
use crate::files::tests::served::Served;

/// Makes a folder for mke2fs to copy.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("deep/er")).unwrap();
    std::fs::write(at("deep/er/text"), "hello\n").unwrap();
    let large: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(at("large"), large).unwrap();
    std::os::unix::fs::symlink("deep/er", at("short")).unwrap();
    std::os::unix::fs::symlink("x".repeat(200), at("long")).unwrap();
    std::fs::hard_link(at("large"), at("same")).unwrap();
    std::fs::create_dir(at("many")).unwrap();
    for index in 0..1500 {
        std::fs::write(at(&format!("many/file-number-{index:04}")), []).unwrap();
    }
    folder
}

fn content(served: &mut impl Calls, path: &str) -> Outcome {
    served.play(&Step::Content(path.into()))
}

#[test]
fn what_mke2fs_has_copied_is_read_and_changed() {
    if !tools::are_here() {
        return;
    }
    let folder = folder();
    for variant in 0..tools::VARIANTS.len() {
        let mut options = tools::options(variant);
        options.extend(["-N", "2048", "-d", folder.path().to_str().unwrap()]);
        let file = tools::make(16 << 20, &options);
        // Large directories get hash trees.
        let optimized = file.run("e2fsck", &["-f", "-y", "-D"]);
        assert!(matches!(optimized.status.code(), Some(0 | 1)));
        let mut served = Served::on(mount(&file.content()));
        let large = std::fs::read(folder.path().join("large")).unwrap();
        assert_eq!(content(&mut served, "same"), Outcome::Bytes(large));
        assert_eq!(
            content(&mut served, "short/text"),
            Outcome::Bytes(b"hello\n".into())
        );
        let long = Outcome::Bytes(vec![b'x'; 100]);
        assert_eq!(served.play(&Step::ReadLink("long".into())), long);
        let Outcome::Names(names) = served.play(&Step::List("many".into())) else {
            panic!("no list");
        };
        assert_eq!(names.len(), 1502);
        for index in (0..1500).step_by(3) {
            let path = format!("many/file-number-{index:04}");
            assert_eq!(served.play(&Step::Unlink(path, false)), Outcome::Value(0));
        }
        for index in 0..300 {
            let path = format!("many/new-{index}");
            assert_eq!(served.play(&Step::Mkdir(path)), Outcome::Value(0));
        }
        let image = served.end().unmount().unwrap().content();
        tools::File::new(&image).is_clean().unwrap();
    }
}

#[test]
fn debugfs_reads_what_was_written() {
    if !tools::are_here() {
        return;
    }
    for variant in 0..tools::VARIANTS.len() {
        let mut served = Served::on(mount(&tools::empty(variant)));
        for step in [
            Step::Mkdir("d".into()),
            Step::Open("d/file".into(), 2, 1),
            Step::WriteAt(0, 0, 5000, b'a'),
            Step::WriteAt(0, 100_000, 5000, b'b'),
            Step::Touch("d/file".into(), 3_000_000_000),
            Step::Symlink("../target".into(), "d/link".into()),
            Step::Chmod("d/file".into(), 0o4711),
        ] {
            let result = served.play(&step);
            assert!(matches!(result, Outcome::Value(_)), "{step:?}: {result:?}");
        }
        let Outcome::Bytes(written) = content(&mut served, "d/file") else {
            panic!("no content");
        };
        let file = tools::File::new(&served.end().unmount().unwrap().content());
        let ask = |request: &str| file.run("debugfs", &["-R", request]).stdout;
        assert_eq!(ask("cat /d/file"), written);
        let status = String::from_utf8_lossy(&ask("stat /d/file")).into_owned();
        for expected in [
            "Mode:  04711",
            "Size: 105000",
            "Links: 1",
            "mtime: 0xb2d05e00:00000001",
        ] {
            assert!(status.contains(expected), "{expected}: {status}");
        }
        let status = String::from_utf8_lossy(&ask("stat /d/link")).into_owned();
        assert!(status.contains("Fast link dest: \"../target\""), "{status}");
    }
}

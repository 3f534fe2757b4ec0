//! Damaged and malicious images: they are refused, or calls on them fail. Nothing panics or goes on
//! forever.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::tools;
use crate::block::recorder::{Random, Recorder};
use crate::ext4::Ext4;
use crate::files::tests::calls::{Calls, Outcome, Step};
use crate::files::tests::cases;
use crate::files::tests::served::Served;

/// Longest time for all calls on an image, on a slow computer.
const LIMIT: Duration = Duration::from_secs(20);

/// Returns an image with some of everything, whose journal is to be replayed.
fn populated(variant: usize) -> Vec<u8> {
    let device = Recorder::new(&tools::empty(variant));
    let mut served = Served::on(Ext4::mount(device.clone(), super::CACHE).unwrap());
    let path = |text: &str| text.to_owned();
    let mut steps = vec![Step::Mkdir(path("d")), Step::Mkdir(path("d/e"))];
    for at in 0..40 {
        steps.push(Step::Open(format!("d/{at}-{}", "n".repeat(50)), 2, 1));
    }
    steps.push(Step::Symlink("t".repeat(90), path("long")));
    steps.push(Step::Symlink(path("d/e"), path("short")));
    for at in 0..30 {
        steps.push(Step::WriteAt(0, at * 10_000, 3000, 7));
    }
    steps.push(Step::Allocate(1, 0, 50_000, false));
    steps.push(Step::WriteAt(1, 10_000, 3000, 7));
    steps.push(Step::Unlink(format!("d/2-{}", "n".repeat(50)), false));
    steps.push(Step::Sync(0));
    for step in &steps {
        let result = served.play(step);
        assert!(!matches!(result, Outcome::Error(_)), "{step:?}: {result:?}");
    }
    device.content()
}

/// Calls what reads and changes all, but not more than some hundred times.
fn use_all(image: &[u8]) {
    let Ok(system) = Ext4::mount(Recorder::new(image), super::CACHE) else {
        return;
    };
    let mut served = Served::on(system);
    let mut folders = vec![String::new()];
    for visited in 0..20 {
        let Some(folder) = folders.pop() else { break };
        let Outcome::Names(names) = served.play(&Step::List(format!("{folder}."))) else {
            continue;
        };
        for name in names.iter().take(30).filter(|name| !name.starts_with('.')) {
            let path = format!("{folder}{name}");
            served.play(&Step::Stat(path.clone(), true));
            served.play(&Step::ReadLink(path.clone()));
            served.play(&Step::Content(path.clone()));
            served.play(&Step::Open(path.clone(), 2, 0));
            served.play(&Step::Rename(path.clone(), format!("moved{visited}"), true));
            served.play(&Step::Link(path.clone(), format!("{path}l"), false));
            folders.push(format!("{path}/"));
        }
    }
    for file in 0..8 {
        served.play(&Step::WriteAt(file, 5000, 9000, 1));
        served.play(&Step::Allocate(file, 3000, 5000, true));
        served.play(&Step::Truncate(file, 100));
        served.play(&Step::Close(file));
    }
    for at in 0..20 {
        served.play(&Step::Mkdir(format!("new{at}")));
        served.play(&Step::Unlink(format!("moved{at}"), at % 2 == 0));
    }
    let _ = served.end().unmount();
}

proptest! {
    #![proptest_config(cases(150))]
    #[test]
    fn nothing_panics_or_goes_on_forever(variant in 0..tools::VARIANTS.len(), seed in any::<u64>()) {
        if tools::are_here() {
            let mut image = populated(variant);
            let used: Vec<usize> = image
                .chunks(512)
                .enumerate()
                .filter(|(_, part)| part.iter().any(|byte| *byte != 0))
                .map(|(at, _)| at * 512)
                .collect();
            let mut random = Random(seed | 1);
            for _ in 0..=random.next() % 30 {
                // The superblock is refused most easily: rarely there.
                let at = used[random.next() as usize % used.len()] + random.next() as usize % 512;
                image[at] = match random.next() % 4 {
                    0 => 0,
                    1 => 0xff,
                    _ => random.next() as u8,
                };
            }
            let began = Instant::now();
            use_all(&image);
            prop_assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        }
    }
}

#[test]
fn features_are_refused_by_name_and_nothing_is_written() {
    if !tools::are_here() {
        return;
    }
    for (options, name) in [
        (["-O", "inline_data"], "inline_data"),
        (["-O", "bigalloc"], "bigalloc"),
        (["-O", "^has_journal"], "no has_journal"),
        (["-O", "encrypt"], "encrypt"),
        (["-O", "meta_bg,^resize_inode"], "meta_bg"),
        (["-O", "quota"], "quota"),
        (["-O", "^extent,^64bit"], "no extent"),
        (["-I", "128"], "fewer than 256 bytes"),
    ] {
        let device = Recorder::new(&tools::make(16 << 20, &options).content());
        let error = Ext4::mount(device.clone(), super::CACHE)
            .unwrap_err()
            .to_string();
        assert!(error.contains(name), "{options:?}: {error}");
        assert_eq!(device.events(), 0, "{options:?}");
    }
    let nothing = Ext4::mount(Recorder::new(&[0; 1 << 20]), super::CACHE).unwrap_err();
    assert_eq!(nothing, crate::ext4::Error::NoExt4);
}

//! Folders that are damaged, or made to deceive, are refused with the reason. Whatever they say, nothing of
//! them is left in the node, and a container beside goes on.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use fastrand::Rng;

use super::super::move_linux::state::{CHECK, NAME, check, connect};
use super::{NEW, copied, is_nowhere, killed, on};
use crate::base::support::insula_command::{Answer, insula, insula_json, text, try_insula};
use crate::base::{Context, Finding};

/// What would be restored.
const FUZZED: &str = "fuzzed";
/// Seed of the first changed folder; the others have the next ones.
const SEED: u64 = 18;
/// What each refusal says one of.
const LEFT: [&str; 2] = ["nothing was touched", "nothing was kept"];

pub(super) fn play(context: &Context, ours: &str, others: &str) -> Result<(), Finding> {
    insula(&["restore", NEW, "--import", ours])?;
    let address = text(&insula_json(&["inspect", NAME])?[0]["address"]);
    let mut checks = connect(&address, CHECK)?;
    damaged(ours, others)?;
    check(&mut checks)?;
    lacks_room(ours)?;
    check(&mut checks)?;
    killed::play(ours, &mut checks)?;
    for seed in SEED..SEED + context.count(3, 300) {
        fuzz(seed, [ours, others], &mut checks)
            .map_err(|error| error.when(&format!("with seed {seed}")))?;
    }
    insula(&["rm", "--force", NAME]).map(drop)
}

fn restore(folder: &str) -> Result<Answer, Finding> {
    try_insula(&["restore", NEW, "--import", folder, "--name", FUZZED])
}

/// A change of a folder, and what is told of it.
type Damage = (&'static str, fn(&Path) -> std::io::Result<()>, &'static str);

/// Of a folder of Insula's any change is noticed before the node is touched.
const DAMAGES: [Damage; 9] = [
    (
        "a bit of memory",
        |folder| flip(&largest(folder)?, 12_345),
        "is damaged: its sum",
    ),
    (
        "a bit of the processes",
        |folder| flip(&folder.join("pstree.img"), 70),
        "pstree.img is damaged",
    ),
    (
        "a bit of the description",
        |folder| flip(&folder.join("container.json"), 99),
        "container.json is damaged",
    ),
    (
        "a bit of a sum",
        |folder| flip(&folder.join("SHA256SUMS"), 33),
        "damaged",
    ),
    (
        "an end",
        |folder| cut(&largest(folder)?),
        "is damaged: its sum",
    ),
    (
        "a missing image",
        |folder| fs::remove_file(folder.join("inventory.img")),
        "inventory.img is missing",
    ),
    (
        "no description",
        |folder| fs::remove_file(folder.join("container.json")),
        "`container.json` is missing",
    ),
    (
        "a link",
        |folder| link(&folder.join("pstree.img")),
        "pstree.img is a link",
    ),
    (
        "an image more",
        |folder| fs::write(folder.join("pages-99.img"), "x"),
        "no sum of pages-99.img",
    ),
];

/// Of one of plain CRIU's what can be told without sums.
const PLAIN_DAMAGES: [Damage; 5] = [
    (
        "an end of memory",
        |folder| cut(&largest(folder)?),
        "it ends after",
    ),
    (
        "an end of the processes",
        |folder| cut(&folder.join("pstree.img")),
        "it ends within a message",
    ),
    (
        "another kind of image",
        |folder| fs::copy(folder.join("pstree.img"), folder.join("files.img")).map(drop),
        "files.img is damaged",
    ),
    (
        "a parent",
        |folder| symlink("/", folder.join("parent")),
        "incremental",
    ),
    (
        "a link to a device",
        |folder| link(&largest(folder)?),
        "is a link",
    ),
];

fn damaged(ours: &str, others: &str) -> Result<(), Finding> {
    let ours = DAMAGES.iter().map(|damage| (ours, damage));
    let others = PLAIN_DAMAGES.iter().map(|damage| (others, damage));
    for (from, (what, change, told)) in ours.chain(others) {
        let folder = copied(from, "damaged")?;
        change(Path::new(&folder))?;
        let refused = restore(&folder)?.refused(1, &[told, LEFT[0]]);
        refused.map_err(|error| error.when(what))?;
    }
    is_nowhere(NEW, FUZZED)
}

/// The node has no memory left for the images.
fn lacks_room(ours: &str) -> Result<(), Finding> {
    on(NEW, "! dd if=/dev/zero of=/run/full bs=1M 2>/dev/null")?;
    let answer = restore(ours)?;
    on(NEW, "rm /run/full")?;
    answer.refused(1, &["No space left", LEFT[1]])?;
    is_nowhere(NEW, FUZZED)
}

/// Restores a changed folder: it is refused, or becomes a container, which can be removed.
fn fuzz(seed: u64, from: [&str; 2], checks: &mut TcpStream) -> Result<(), Finding> {
    let mut random = Rng::with_seed(seed);
    let is_ours = random.bool();
    let folder = copied(from[usize::from(!is_ours)], "fuzzed")?;
    let changed = change(Path::new(&folder), &mut random)?;
    if is_ours {
        sign(&folder)?;
    }
    let answer = restore(&folder)?;
    println!("seed {seed}: {changed}: {}", told(&answer));
    match answer.status {
        Some(0) => drop(insula(&["rm", "--force", FUZZED])?),
        _ => {
            let is_told = LEFT.iter().any(|left| answer.error_output.contains(left));
            Finding::unless(is_told, || answer.error_output.clone())?;
            answer.refused(1, &["restored"])?;
        }
    }
    is_nowhere(NEW, FUZZED)?;
    check(checks)
}

/// The first line of what was told.
fn told(answer: &Answer) -> &str {
    let all = [&answer.error_output, &answer.output];
    all.into_iter()
        .find_map(|text| text.lines().next())
        .unwrap_or_default()
}

/// Changes some of its images; what was done.
fn change(folder: &Path, random: &mut Rng) -> Result<String, Finding> {
    let mut changes = Vec::new();
    for _ in 0..random.usize(1..4) {
        let images = images(folder)?;
        let image = &images[random.usize(..images.len())];
        let mut content = fs::read(image)?;
        let at = random.usize(..content.len().max(1));
        let kind = random.u8(..5);
        match (kind, content.get_mut(at)) {
            (0 | 1, Some(byte)) => *byte ^= 1 << random.u8(..8),
            (2, _) => content.truncate(at),
            (3, Some(_)) => {
                let end = content.len().min(at + 4);
                content[at..end].fill(0xff);
            }
            _ => content.extend((0..random.usize(1..64)).map(|_| random.u8(..))),
        }
        fs::write(image, content)?;
        let name = image
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        changes.push(format!("{kind} at {at} of {name}"));
    }
    Ok(changes.join(", "))
}

/// Writes the sums of a folder anew, as who wants to deceive would.
fn sign(folder: &str) -> Result<(), Finding> {
    let sums = "sha256sum -- *.img container.json log > SHA256SUMS";
    let status = Command::new("sh")
        .args(["-c", sums])
        .current_dir(folder)
        .status()?;
    Finding::unless(status.success(), || "no sums".into())
}

/// The images of a folder, by name.
fn images(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "img") {
            images.push(path);
        }
    }
    images.sort();
    Ok(images)
}

fn largest(folder: &Path) -> std::io::Result<PathBuf> {
    let size = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    let images = images(folder)?;
    images
        .into_iter()
        .max_by_key(size)
        .ok_or(std::io::ErrorKind::NotFound.into())
}

/// Changes a bit.
fn flip(path: &Path, bit: usize) -> std::io::Result<()> {
    let mut content = fs::read(path)?;
    let at = bit / 8 % content.len();
    content[at] ^= 1 << (bit % 8);
    fs::write(path, content)
}

/// Cuts the last byte off.
fn cut(path: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.set_len(file.metadata()?.len().saturating_sub(1))
}

/// Has a link to the same content in its place.
fn link(path: &Path) -> std::io::Result<()> {
    let real = path.with_extension("real");
    fs::rename(path, &real)?;
    symlink(real, path)
}

//! Resident images: starts from memory, without the files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::base::support::insula_command::{
    assert_equal, insula, insula_json, text, try_insula, with_cleanup,
};
use crate::base::support::load::sectors_read;
use crate::base::support::nodes::test_node::{TestNode, path};
use crate::base::support::resources::{Resources, assert_unchanged, drop_caches};
use crate::base::{Context, Finding, Module, Scenario, Shape};
use crate::host::kernels::Flavour;

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "images",
    proves: "a resident image outlives its files, in each form, and a start from it reads no disk",
    machine: Shape::USUAL,
    module: Module::Loaded,
    bases: &[Flavour::V6_12],
    limit: Duration::from_secs(400),
    soak_limit: Some(Duration::from_secs(1200)),
    play,
};

/// On the root disk, unlike /tmp.
const FOLDER: &str = "/var/tmp/images";
const FORMS: [&str; 3] = ["compressed", "decompressed", "elf"];
const SIZE: [&str; 4] = ["--cpus", "1", "--memory", "320M"];
const SECTOR_BYTES: u64 = 512;

fn play(context: &Context) -> Result<(), Finding> {
    fs::create_dir_all(FOLDER)?;
    let before = Resources::now()?;
    with_cleanup(|| {
        for version in ["6.1", "6.12"] {
            let release = context.release(version)?;
            let files = Files::copy(context, version)?;
            a_cold_start_reads(&files)?;
            // The older kernel as it is delivered, in a long run in each form, too.
            let few = context.select(version == "6.1", false);
            let forms = if few { &FORMS[..1] } else { &FORMS };
            for form in forms {
                each_form(&files, form, &release)
                    .map_err(|finding| finding.when(&format!("{form} {version}")))?;
            }
        }
        outlived_by_its_node(context)?;
        saved_and_loaded(context)?;
        assert_unchanged(&before)
    })?;
    Ok(fs::remove_dir_all(FOLDER)?)
}

/// A kernel's files, copied to a disk.
struct Files {
    kernel: PathBuf,
    initrd: PathBuf,
    /// ELF file extracted from the kernel.
    elf: PathBuf,
}

impl Files {
    fn copy(context: &Context, version: &str) -> Result<Self, Finding> {
        let file = |name: &str| Path::new(FOLDER).join(format!("{name}-{version}"));
        let (kernel, initrd, elf) = (file("vmlinuz"), file("initrd"), file("vmlinux"));
        fs::copy(context.kernel(version)?, &kernel)?;
        fs::copy(context.node_initrd(), &initrd)?;
        fs::write(&elf, kimage::vmlinux(&fs::read(&kernel)?)?)?;
        Ok(Self {
            kernel,
            initrd,
            elf,
        })
    }
}

/// Proves that reads of disks are noticed, and that the files are on a disk: [`each_form`] relies
/// on both.
fn a_cold_start_reads(files: &Files) -> Result<(), Finding> {
    let (kernel, initrd) = (path(&files.kernel), path(&files.initrd));
    let source = ["--kernel", &kernel, "--initrd", &initrd];
    let (node, bytes) = start_cold(&source)?;
    let needed = fs::metadata(&files.kernel)?.len() + fs::metadata(&files.initrd)?.len();
    Finding::unless(bytes >= needed, || {
        format!("a cold start from {needed} bytes of files read {bytes} bytes of disks")
    })?;
    node.remove()
}

/// Starts a node with only programs in the base's page cache. Returns the node and how many bytes
/// were read from disks between the command and the kernel's first instruction.
fn start_cold(source: &[&str]) -> Result<(TestNode, u64), Finding> {
    drop_caches()?;
    // Page cache of the programs, which any use fills.
    fs::read("/proc/self/exe")?;
    insula(&["ps"])?;
    fs::read("/payload/bin/insula")?;
    let before = sectors_read()?;
    let node = TestNode::start("cold", source, &SIZE, "idle")?;
    Ok((node, (sectors_read()? - before) * SECTOR_BYTES))
}

/// Makes one form of a kernel resident, removes the files, starts a node from it.
fn each_form(files: &Files, form: &str, release: &str) -> Result<(), Finding> {
    let before = Resources::now()?;
    let ours = Path::new(FOLDER).join("kernel");
    let given = if form == "elf" {
        &files.elf
    } else {
        &files.kernel
    };
    let initrd = Path::new(FOLDER).join("initrd");
    fs::copy(given, &ours)?;
    fs::copy(&files.initrd, &initrd)?;
    add(form, &ours, &initrd)?;
    check_listed(form, release, &ours)?;
    fs::remove_file(&ours)?;
    fs::remove_file(&initrd)?;

    let (node, bytes) = start_cold(&["--image", "resident"])?;
    assert_equal("bytes that the start read from disks", &bytes, &0)?;
    node.assert_ready(release)?;
    node.remove()?;
    insula(&["image", "rm", "resident"])?;
    assert_unchanged(&before)
}

fn add(form: &str, kernel: &Path, initrd: &Path) -> Result<(), Finding> {
    let (kernel, initrd) = (path(kernel), path(initrd));
    let layout = if form == "decompressed" {
        form
    } else {
        "compressed"
    };
    let words = ["image", "add", "resident", "--layout", layout];
    let files = ["--kernel", &kernel, "--initrd", &initrd];
    insula(&[&words[..], &files].concat()).map(drop)
}

/// Checks the list and the inspection of the image.
fn check_listed(form: &str, release: &str, kernel: &Path) -> Result<(), Finding> {
    let list = insula_json(&["image", "ls", "--json"])?;
    assert_equal("images", &list.as_array().map(Vec::len), &Some(1))?;
    for image in [
        &list[0],
        &insula_json(&["image", "inspect", "resident"])?[0],
    ] {
        assert_equal("name", &image["name"].as_str(), &Some("resident"))?;
        assert_equal("release", &image["release"].as_str(), &Some(release))?;
        let layout = if form == "decompressed" {
            form
        } else {
            "compressed"
        };
        assert_equal("layout", &image["layout"].as_str(), &Some(layout))?;
    }
    let image = &insula_json(&["image", "inspect", "resident"])?[0];
    assert_equal("kernel", &text(&image["kernel"]["path"]), &path(kernel))?;
    assert_equal(
        "sha256",
        &text(&image["kernel"]["sha256"]),
        &digest(kernel)?,
    )?;
    assert_equal("log", &image["log"]["readable"], &Value::Bool(true))
}

fn digest(file: &Path) -> Result<String, Finding> {
    let output = Command::new("sha256sum").arg(file).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// An image can be removed while a node that was started from it runs on; a node with another
/// command line still shares both of its parts.
fn outlived_by_its_node(context: &Context) -> Result<(), Finding> {
    let kernel = path(&context.kernel("6.12")?);
    let initrd = path(context.node_initrd());
    let words = ["image", "add", "short", "--append", "from=image"];
    let files = ["--kernel", &kernel, "--initrd", &initrd];
    insula(&[&words[..], &files].concat())?;
    let node = TestNode::start("long", &["--image", "short"], &SIZE, "compute")?;
    insula(&["image", "rm", "short"])?;
    node.assert_ready(&context.release("6.12")?)?;
    let line = text(&node.inspect()?["command_line"]);
    let parts = line.contains("from=image") && line.contains("do=compute");
    Finding::unless(parts, || {
        format!("the command line is not of both parts: {line}")
    })?;
    node.assert_works()?;
    node.remove()
}

/// An image that was saved and removed is loaded again, with the same content; damaged files are
/// refused, and nothing is kept of them.
fn saved_and_loaded(context: &Context) -> Result<(), Finding> {
    let before = Resources::now()?;
    let kernel = path(&context.kernel("6.12")?);
    let initrd = path(context.node_initrd());
    let words = ["image", "add", "saved", "--append", "from=image"];
    let files = ["--kernel", &kernel, "--initrd", &initrd];
    insula(&[&words[..], &files].concat())?;
    let added = insula_json(&["image", "inspect", "saved"])?[0].clone();
    let file = Path::new(FOLDER).join("saved.image");
    insula(&["image", "save", "saved", "--output", &path(&file)])?;
    refuses(
        &["image", "save", "saved", "--output", &path(&file)],
        "File exists",
    )?;
    insula(&["image", "rm", "saved"])?;
    assert_unchanged(&before)?;
    damaged_files_are_refused(&file)?;
    assert_unchanged(&before)?;

    insula(&["image", "load", "--input", &path(&file)])?;
    refuses(
        &["image", "load", "--input", &path(&file)],
        "already is an image",
    )?;
    insula(&["image", "load", "--input", &path(&file), "--name", "other"])?;
    fs::remove_file(&file)?;
    for name in ["saved", "other"] {
        let loaded = insula_json(&["image", "inspect", name])?[0].clone();
        for fact in [
            "kernel", "initrd", "append", "offsets", "segments", "layout",
        ] {
            assert_equal(fact, &loaded[fact], &added[fact])?;
        }
    }
    insula(&["image", "rm", "saved"])?;
    let node = TestNode::start("loaded", &["--image", "other"], &SIZE, "idle")?;
    node.assert_ready(&context.release("6.12")?)?;
    node.remove()?;
    insula(&["image", "rm", "other"])?;
    assert_unchanged(&before)
}

/// Refuses a file that is truncated, and one with a bit flipped in its content.
fn damaged_files_are_refused(file: &Path) -> Result<(), Finding> {
    let damaged = Path::new(FOLDER).join("damaged.image");
    let whole = fs::read(file)?;
    let refused = |why| refuses(&["image", "load", "--input", &path(&damaged)], why);
    fs::write(&damaged, &whole[..whole.len() - 4096])?;
    refused("truncated")?;
    let mut flipped = whole;
    if let Some(last) = flipped.last_mut() {
        *last ^= 1;
    }
    fs::write(&damaged, flipped)?;
    refused("checksum")?;
    Ok(fs::remove_file(damaged)?)
}

/// Runs a command that fails with that text, and leaves a hint.
fn refuses(words: &[&str], why: &str) -> Result<(), Finding> {
    try_insula(words)?.refused(1, &[why])
}

//! Delegation by the lightweight kernel itself: a driver unknown to Insula, and memory that is
//! unmapped while a disk is read into it.

use std::fs;
use std::process::Command;

use super::{DISK_FILE, MIB};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, insula};

const NODE: &str = "quiet";
const PROBE: &str = "/payload/bin/insula-probe";
const DRIVER: &str = "/payload/insula_nested.ko";

pub(super) fn play(rounds: u64) -> Result<(), Finding> {
    let words = "run --image lwk --cpus 3 --memory 64M,chunk=8M --name quiet";
    insula(&words.split(' ').collect::<Vec<_>>())?;
    structures_within_structures()?;
    late_reads(rounds)?;
    pinned_pages()?;
    insula(&["rm", "--force", NODE]).map(drop)
}

fn on_node(words: &[&str]) -> Result<String, Finding> {
    insula(&[&["exec", NODE, "--", PROBE], words].concat())
}

fn structures_within_structures() -> Result<(), Finding> {
    run("insmod", DRIVER)?;
    let on_linux = Command::new(PROBE).arg("nested").output()?;
    let on_node = on_node(&["nested"])?;
    run("rmmod", "insula_nested")?;
    assert_equal(
        "the driver's answer",
        &on_node.as_bytes(),
        &&on_linux.stdout[..],
    )?;
    Finding::unless(on_node.contains("MANY KERNELS"), || {
        format!("the driver answered {on_node}")
    })
}

fn run(command: &str, what: &str) -> Result<(), Finding> {
    let status = Command::new(command).arg(what).status()?;
    Finding::unless(status.success(), || format!("{command} {what}: {status}"))
}

fn late_reads(rounds: u64) -> Result<(), Finding> {
    fs::write(DISK_FILE, vec![0xa5; MIB as usize])?;
    let output = on_node(&["race", DISK_FILE, &rounds.to_string()])?;
    fs::remove_file(DISK_FILE)?;
    assert_equal("the race", &output.as_str(), &"nothing came late\n")
}

/// Pages of a program that a pipe pins: they are not reused before the pipe unpins them, and no
/// others are lost.
fn pinned_pages() -> Result<(), Finding> {
    const ALL: &str =
        "pinned pages keep their content\nno other page is lost\nand unpinned pages are returned\n";
    // More MiB than the node has.
    let output = on_node(&["pins", "80"])?;
    assert_equal("pages that a pipe has", &output.as_str(), &ALL)
}

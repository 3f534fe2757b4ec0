//! Pages that the base moves to other memory, or merges with equal ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{NODE, PROBE};
use crate::base::Finding;
use crate::base::support::insula_command::{assert_equal, command};

const BLOCKS: &str = "/sys/devices/system/memory";
/// Time after which the base gives up offlining a block, in seconds.
const OFFLINE_TIMEOUT_S: &str = "20";
/// Blocks tried: many hold what cannot be moved.
const ATTEMPTS: usize = 8;

const KSM: &str = "/sys/kernel/mm/ksm";

/// Takes a block of memory offline, whose pages thereby move, and online again.
pub(super) fn offline_a_block(round: u64) -> Result<(), Finding> {
    let mut blocks: Vec<PathBuf> = fs::read_dir(BLOCKS)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("removable").exists())
        .collect();
    blocks.sort();
    let first = round as usize % blocks.len().max(1);
    blocks.rotate_left(first);
    for block in blocks.iter().take(ATTEMPTS) {
        if offline(block)? {
            return Ok(fs::write(block.join("state"), "online")?);
        }
    }
    println!("no block of {ATTEMPTS} could be taken offline");
    Ok(())
}

/// Takes a block offline if all in it can be moved. Returns whether it is.
fn offline(block: &Path) -> Result<bool, Finding> {
    let words = ["timeout", "-s", "INT", OFFLINE_TIMEOUT_S, "sh", "-c"];
    let script = format!("echo offline > {}/state 2>/dev/null", block.display());
    Command::new(words[0])
        .args(&words[1..])
        .arg(script)
        .status()?;
    Ok(fs::read_to_string(block.join("state"))?.trim() == "offline")
}

/// A program's equal pages are merged, and differ again when they are written.
pub(super) fn are_merged() -> Result<(), Finding> {
    let set = |name: &str, value: &str| fs::write(Path::new(KSM).join(name), value);
    let get = |name: &str| fs::read_to_string(Path::new(KSM).join(name));
    let before = [get("sleep_millisecs")?, get("pages_to_scan")?];
    set("sleep_millisecs", "20")?;
    set("pages_to_scan", "2000")?;
    set("run", "1")?;
    let done = merge();
    // Separates what is still merged.
    set("run", "2")?;
    set("run", "0")?;
    set("sleep_millisecs", &before[0])?;
    set("pages_to_scan", &before[1])?;
    done
}

fn merge() -> Result<(), Finding> {
    let on_base = Command::new(PROBE).arg("merged").output()?;
    let on_node = command(&["exec", NODE, "--", PROBE, "merged"]).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_equal("on the base", &on_base.status.code(), &Some(0))?;
    assert_equal(
        "merged pages",
        &text(&on_node.stdout),
        &text(&on_base.stdout),
    )
}

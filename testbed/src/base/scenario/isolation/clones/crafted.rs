//! Files of snapshots that somebody has changed, with a checksum that fits.

use std::fs;
use std::ops::Range;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::base::Finding;
use crate::base::support::insula_command::{insula, try_insula};
use crate::base::support::resources::{Resources, assert_unchanged};

const CRAFTED: &str = "crafted";
const FILE: &str = "/tmp/crafted.image";
/// The file's format (`insula/image/src/image_file.rs`): sizes in its header, its checksum, and what follows.
const DESCRIPTION_SIZE: usize = 12;
const EXTENTS: usize = 24;
const DIGEST: Range<usize> = 40..72;
const EXTENT_SIZE: usize = 16;
/// In the state of a core (`vmm/src/state.rs`): XCR0, breakpoints and model-specific registers, what the
/// guest was doing, and the control register and the header of the extended state.
const XCR0: Range<u64> = 32..40;
const REGISTERS: Range<u64> = 40..152;
const PAUSED: Range<u64> = 0x400..0x1000;
const MXCSR: Range<u64> = 0x2018..0x201c;
const EXTENDED_HEADER: Range<u64> = 0x2200..0x2240;

/// A snapshot that is another one's, or whose cores have states that no core can have, ends its copy, or is
/// refused, or its core takes the states as far as it can: the monitor does not fault, and nothing of the base
/// changes.
pub(super) fn are_survived(saved: &[u8]) -> Result<(), Finding> {
    let before = Resources::now()?;
    let foreign = with_other_vendor(saved)?;
    copy_ends(
        foreign,
        &["processors", "another vendor's", "nothing was touched"],
    )?;
    copy_ends(
        with_states(saved, &[XCR0])?,
        &["has not gone on", "monitor-failed"],
    )?;
    copy_ends(
        with_states(saved, &[PAUSED])?,
        &["has not gone on", "violation"],
    )?;
    copy_goes_on(with_states(saved, &[REGISTERS, MXCSR, EXTENDED_HEADER])?)?;
    assert_unchanged(&before)
}

/// Loads the file, and starts a copy, whose agent answers.
fn copy_goes_on(file: Vec<u8>) -> Result<(), Finding> {
    fs::write(FILE, file)?;
    insula(&["image", "load", "--input", FILE, "--name", CRAFTED])?;
    insula(&["run", "--image", CRAFTED, "--name", "other"])?;
    insula(&["rm", "--force", "other"])?;
    insula(&["image", "rm", CRAFTED])?;
    Ok(fs::remove_file(FILE)?)
}

/// Loads the file, and starts a copy, which fails as these parts say.
fn copy_ends(file: Vec<u8>, parts: &[&str]) -> Result<(), Finding> {
    fs::write(FILE, file)?;
    insula(&["image", "load", "--input", FILE, "--name", CRAFTED])?;
    try_insula(&["run", "--image", CRAFTED, "--name", "other"])?.refused(1, parts)?;
    insula(&["image", "rm", CRAFTED])?;
    Ok(fs::remove_file(FILE)?)
}

fn with_other_vendor(saved: &[u8]) -> Result<Vec<u8>, Finding> {
    let (own, other) = (b"AuthenticAMD", b"GenuineIntel");
    let at = saved.windows(own.len()).position(|bytes| bytes == own);
    let at = at.ok_or_else(|| Finding::new("the file names no vendor"))?;
    let mut file = saved.to_vec();
    file[at..at + other.len()].copy_from_slice(other);
    Ok(sealed(file))
}

/// The file with all bits set of parts of the first core's state.
fn with_states(saved: &[u8], parts: &[Range<u64>]) -> Result<Vec<u8>, Finding> {
    let mut file = saved.to_vec();
    let description = DIGEST.end..DIGEST.end + number(saved, DESCRIPTION_SIZE, 4) as usize;
    let described: Value = serde_json::from_slice(&saved[description.clone()])?;
    let states = described["content"]["snapshot"]["states"].as_u64();
    let states = states.ok_or_else(|| Finding::new(format!("no states: {described}")))?;
    let count = number(saved, EXTENTS, 8) as usize;
    let mut bytes = description.end + count * EXTENT_SIZE;
    for entry in (description.end..).step_by(EXTENT_SIZE).take(count) {
        let (offset, size) = (number(saved, entry, 8), number(saved, entry + 8, 8));
        for at in parts.iter().cloned().flatten().map(|at| states + at) {
            if (offset..offset + size).contains(&at) {
                file[bytes + (at - offset) as usize] = 0xff;
            }
        }
        bytes += size as usize;
    }
    Ok(sealed(file))
}

/// A number of the file.
fn number(file: &[u8], at: usize, size: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(&file[at..at + size]);
    u64::from_le_bytes(bytes)
}

/// The file with the checksum of what it is now.
fn sealed(mut file: Vec<u8>) -> Vec<u8> {
    let mut digest = Sha256::new();
    digest.update(&file[..DIGEST.start]);
    digest.update(&file[DIGEST.end..]);
    let digest = digest.finalize();
    file[DIGEST].copy_from_slice(&digest);
    file
}

//! Sums of a folder's files, in the format of `sha256sum`, which can check them, too.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;

use sha2::{Digest, Sha256};

use super::folder::{Folder, failed};
use super::{CheckpointError, SUMS};

/// Most bytes of the file of sums.
const BYTES_MAX: u64 = 32 << 20;
/// Bytes of one read.
const PIECE: usize = 1 << 16;
/// Digits of a sum, and what `sha256sum` writes between it and the name.
const DIGITS: usize = 64;
const BETWEEN: &str = "  ";

/// Writes the sums of these files.
pub(super) fn write(folder: &Folder, names: &[String]) -> Result<(), CheckpointError> {
    let mut text = String::new();
    for name in names {
        let sum = sum(folder, name)?;
        text.push_str(&sum);
        text.push_str(BETWEEN);
        text.push_str(name);
        text.push('\n');
    }
    folder.write(SUMS, text.as_bytes())
}

/// Checks these files: each has a sum and agrees with it, and none that has one is missing.
pub(super) fn verify(folder: &Folder, names: &[String]) -> Result<(), CheckpointError> {
    let content = folder.read(SUMS, BYTES_MAX)?;
    let mut sums = parse(&content)?;
    for name in names {
        match sums.remove(name.as_str()) {
            Some(wanted) if wanted == sum(folder, name)? => {}
            Some(_) => return Err(CheckpointError::Sum(name.clone())),
            None => return Err(damaged(format!("it has no sum of {name}"))),
        }
    }
    match sums.into_keys().next() {
        Some(name) => Err(CheckpointError::Missing(name.escape_debug().to_string())),
        None => Ok(()),
    }
}

/// The sums by name.
fn parse(content: &[u8]) -> Result<BTreeMap<&str, &str>, CheckpointError> {
    let text = str::from_utf8(content).map_err(|error| damaged(error.to_string()))?;
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let parts = line.split_once(BETWEEN);
        let parts = parts.filter(|(sum, _)| sum.len() == DIGITS);
        let (sum, name) = parts.ok_or_else(|| damaged("a line of it is no sum".to_owned()))?;
        if sums.insert(name, sum).is_some() {
            return Err(damaged("a name has two sums".to_owned()));
        }
    }
    Ok(sums)
}

/// The sum of a file.
fn sum(folder: &Folder, name: &str) -> Result<String, CheckpointError> {
    let (mut file, _) = folder.file(name)?;
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece).map_err(|error| failed(name, error))? {
            0 => break,
            count => hash.update(&piece[..count]),
        }
    }
    let mut text = String::with_capacity(DIGITS);
    for byte in hash.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

fn damaged(fault: String) -> CheckpointError {
    CheckpointError::Damaged {
        name: SUMS.to_owned(),
        fault,
    }
}

//! Snapshots: images of nodes that have booted, from which copies go on.
//!
//! The memory object holds the node's memory, its large pieces first, so that each granule of it is one
//! here; and then the states of its cores, as its monitor has left them.

use std::path::PathBuf;

use insula_abi as abi;
use insula_base::error::Error;
use insula_driver::name::Name;
use insula_driver::{Driver, Memory};
use serde::{Deserialize, Serialize};

use super::add::{allocate, check_name, driver_failed};
use super::built_in;
use super::digest::sha256;
use super::processor::Processor;

/// A range of the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownChunk {
    /// Its address, by which the node's kernel knows it.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// The mark of a snapshot's description, which no other image's has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotKind {
    /// A snapshot.
    Snapshot,
}

/// A disk of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SnapshotDisk {
    /// A file with its content, which belongs to the snapshot; or the node's disk itself, if that is only
    /// read.
    pub path: PathBuf,
    /// Whether it is only read.
    pub read_only: bool,
}

/// Everything that a start of a copy needs to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// What it is.
    pub kind: SnapshotKind,
    /// The node's name.
    pub node: String,
    /// Its kernel's release.
    pub release: String,
    /// Its memory, in the order of the image's, from offset 0 on.
    pub memory: Vec<ShownChunk>,
    /// Memory that it shares with other nodes: the image of its root. It is not in the snapshot.
    pub shared: Vec<ShownChunk>,
    /// Its disks, in order. They are not in the snapshot, either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<SnapshotDisk>,
    /// Offset of the states of its cores, which follow each other.
    pub states: u64,
    /// Local APIC ids by which its kernel knows its cores, in the order of the states.
    pub cpus: Vec<u32>,
    /// The time stamp counter, as its kernel saw it.
    pub tsc: u64,
    /// Physical address of the byte that it sets to power off.
    pub power_off: u64,
    /// That of the byte that it sets to reset.
    pub reset: u64,
    /// SHA-256 of the monitor that has left the states: only the same can go on from them.
    pub monitor_sha256: String,
    /// The processor that its kernel has found.
    pub processor: Processor,
    /// The node's record.
    pub record: serde_json::Value,
    /// When it was taken, in seconds since 1970.
    pub added_unix_s: u64,
}

impl Snapshot {
    /// Bytes of the node's memory.
    #[must_use]
    pub fn memory_size(&self) -> u64 {
        let sizes = self.memory.iter().map(|chunk| chunk.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Whether its parts are within its memory, and all that it says can be.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        const PAGE: u64 = 4096;
        const ADDRESS_END: u64 = 1 << 48;
        let is_whole = |chunk: &ShownChunk| {
            let end = chunk.start.checked_add(chunk.size);
            chunk.start.is_multiple_of(PAGE)
                && chunk.size.is_multiple_of(PAGE)
                && chunk.size > 0
                && end.is_some_and(|end| end <= ADDRESS_END)
        };
        (1..=abi::NODE_CPUS_MAX).contains(&self.cpus.len())
            && !self.memory.is_empty()
            && self.memory.iter().chain(&self.shared).all(is_whole)
            && self.memory_size() == self.states
            && self.states < ADDRESS_END
    }

    /// Bytes of the image: memory and states.
    #[must_use]
    pub fn size(&self) -> u64 {
        let states = (self.cpus.len() as u64).saturating_mul(abi::monitor::MONITOR_STATE_SIZE);
        self.states.saturating_add(states)
    }
}

/// A resident snapshot.
#[derive(Debug)]
pub struct SnapshotImage {
    /// Its name.
    pub name: Name,
    /// Its description.
    pub description: Snapshot,
    /// Its memory object.
    pub memory: Memory,
}

/// SHA-256 of the monitor that is installed.
///
/// # Errors
/// When it cannot be read.
pub fn monitor_digest() -> std::io::Result<String> {
    Ok(sha256(&std::fs::read(built_in::monitor())?))
}

/// Makes a snapshot resident: `fill` writes its memory, of at least `size` bytes, and describes it.
///
/// # Errors
/// When the name is in use, memory is short or the module fails; or that of `fill`. Nothing is kept.
pub fn add_snapshot(
    driver: &Driver,
    name: &Name,
    size: u64,
    fill: impl FnOnce(&Memory) -> Result<Snapshot, Error>,
) -> Result<(), Error> {
    check_name(driver, name)?;
    let memory = allocate(driver, name, size)?;
    let text = encode(name, &fill(&memory)?)?;
    driver
        .add_image(&name.to_abi(), &text, &memory)
        .map_err(|error| driver_failed(name, error.into()))
}

/// A description as the module keeps it.
///
/// # Errors
/// When it is too long.
pub(super) fn encode(name: &Name, description: &Snapshot) -> Result<Vec<u8>, Error> {
    // Serialising to memory fails only for maps with non-string keys: there are none.
    let text = serde_json::to_vec(description).unwrap_or_default();
    match text.len() > abi::DESCRIPTION_MAX {
        true => Err(too_long(name, text.len())),
        false => Ok(text),
    }
}

fn too_long(name: &Name, size: usize) -> Error {
    let most = abi::DESCRIPTION_MAX;
    Error::new(format!(
        "the description of the snapshot '{name}' has {size} bytes, the module allows {most}"
    ))
    .nothing_kept()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn snapshot(memory: &[(u64, u64)], cores: usize) -> Snapshot {
        let chunk = |&(start, size): &(u64, u64)| ShownChunk { start, size };
        let memory: Vec<_> = memory.iter().map(chunk).collect();
        Snapshot {
            kind: SnapshotKind::Snapshot,
            node: "web".into(),
            release: "6.1".into(),
            states: memory.iter().map(|chunk| chunk.size).sum(),
            memory,
            shared: Vec::new(),
            disks: Vec::new(),
            cpus: (1..=cores as u32).collect(),
            tsc: 1,
            power_off: 0,
            reset: 0,
            monitor_sha256: String::new(),
            processor: Processor::of_machine(1000),
            record: serde_json::Value::Null,
            added_unix_s: 0,
        }
    }

    #[test]
    fn snapshots_that_lead_outside_are_not_valid() {
        let memory = [(0x20_0000, 0x20_0000), (0x10000, 0x9000)];
        let changed = |change: fn(&mut Snapshot)| {
            let mut snapshot = snapshot(&memory, 2);
            change(&mut snapshot);
            snapshot.is_valid()
        };
        assert!(changed(|_| ()));
        assert!(!changed(|one| one.states += 4096));
        assert!(!changed(|one| one.cpus.clear()));
        assert!(!changed(|one| one.cpus = vec![1; 257]));
        assert!(!changed(|one| one.memory.clear()));
        assert!(!changed(|one| one.memory[0].start += 1));
        assert!(!changed(|one| one.memory[0].start = u64::MAX - 0xfff));
        assert!(!changed(|one| {
            one.memory[0].size = u64::MAX - 0xfff;
            one.states = u64::MAX;
        }));
    }

    #[test]
    fn a_snapshot_is_told_from_a_kernel() {
        let text = serde_json::to_vec(&snapshot(&[(0, 0x1000)], 1)).unwrap();
        assert!(serde_json::from_slice::<Snapshot>(&text).is_ok());
        let kernel = crate::description::tests::description(&[5000], 0);
        let text = serde_json::to_vec(&kernel).unwrap();
        assert!(serde_json::from_slice::<Snapshot>(&text).is_err());
    }
}

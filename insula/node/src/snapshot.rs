//! Taking a snapshot of a confined node: an image from which copies of it go on.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use insula_abi as abi;
use insula_abi::monitor::{MONITOR_STATE_SIZE, MonitorState};
use insula_base::error::{Error, Source};
use insula_base::root::Root;
use insula_driver::name::Name;
use insula_driver::{Driver, DriverError, Memory};
use insula_image::{Processor, ShownChunk, Snapshot, SnapshotKind, add_snapshot, monitor_digest};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use zerocopy::FromBytes;

use super::end::not_running;
use super::kept_disks::KeptDisks;
use super::monitor_state::core_states;
use super::record::no_record;
use super::view::{Handle, find};
use crate::attachment::{DiskFile, Drained, UsedIndex, drain, keep};
use crate::isolation::Isolation;
use crate::{NodeRecord, pause, resume};

/// Time within which a node handles no interrupt for a moment.
const MOMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that it executes between two attempts.
const INTERVAL: Duration = Duration::from_millis(2);

/// Takes a snapshot of a running node, which goes on. It stands still while its memory and its disks are
/// copied.
///
/// # Errors
/// Why not: it cannot be copied, the name is in use, or room is short; nothing is left behind.
pub fn snapshot(driver: &Driver, root: &Root, node: &Name, name: &Name) -> Result<(), Error> {
    let handle = find(driver, node)?;
    let record = checked(&handle, node)?;
    let mut disks = KeptDisks::of(root, record)?;
    let chunks = chunks(&handle).map_err(|error| failed(node, error))?;
    let states = chunks.iter().map(|&(_, chunk)| chunk.size).sum::<u64>();
    let size = states + handle.cpus.len() as u64 * MONITOR_STATE_SIZE;
    add_snapshot(driver, name, size, |to| {
        let paused = PausedNode::pause(driver, node, &handle)?;
        let drained = drained(&handle, node, disks.disks)?;
        disks.keep_contents(&drained.files, name)?;
        let copied = copy_all(&handle, &chunks, &paused.states, &drained.used, to);
        let tsc = paused.tsc();
        paused.resume()?;
        copied.map_err(|error| failed(node, error))?;
        let (machine, _) = driver.machine().map_err(|error| failed(node, error))?;
        let processor = Processor::of_machine(machine.tsc_khz);
        let described = describe(&handle, record, &chunks, (tsc, processor));
        let described = described.map_err(|error| failed(node, error))?;
        Ok(Snapshot {
            disks: disks.described.clone(),
            ..described
        })
    })?;
    keep(disks.contents);
    Ok(())
}

/// Tells whether a snapshot of a running node can be taken, which need not have booted yet.
///
/// # Errors
/// Why not: what of it a copy could not have.
pub fn check_snapshot(handle: &Handle, name: &Name) -> Result<(), Error> {
    checked(handle, name).map(drop)
}

/// The record of a node of which a snapshot can be taken.
fn checked<'a>(handle: &'a Handle, name: &Name) -> Result<&'a NodeRecord, Error> {
    if !handle.is_running() {
        return Err(not_running(name));
    }
    let record = handle.record.as_ref();
    let record = record.ok_or_else(|| no_record(name.as_str()).unchanged())?;
    check(handle, name, record)?;
    Ok(record)
}

/// Refuses what a copy could not have, before anything is touched.
fn check(handle: &Handle, name: &Name, record: &NodeRecord) -> Result<(), Error> {
    let devices = handle.node.devices().map_err(|error| failed(name, error))?;
    let resized = handle.cpus.len() != handle.known_apic_ids().len()
        || handle.info.cpus_count as usize != record.cpus.len();
    let written = || record.disks.iter().filter(|disk| !disk.read_only);
    let (why, hint) = if record.spec.isolation != Isolation::Vmm {
        ("only nodes with --isolation vmm can be copied", "")
    } else if !record.is_linux() {
        ("a node of the lightweight kernel cannot be copied", "")
    } else if record.root.is_some() && !record.spec.unmounted_root {
        (
            "its root is a folder of the base, which is not frozen with the node",
            "start it from a file as root: an ext4 file system, or an EROFS image; or with --unmounted-root",
        )
    } else if !record.volumes.is_empty() {
        (
            "it has volumes, which are not frozen with the node",
            "start it without --volume",
        )
    } else if written().any(DiskFile::is_block_device) {
        (
            "one of its disks is a block device that it may write to",
            "start it with a file as disk, or append `,ro`",
        )
    } else if written().any(|disk| disk.base.is_some()) {
        (
            "it is a copy itself, and has disks that it may write to",
            "take the snapshot of its original",
        )
    } else if !devices.is_empty() {
        ("it has PCI functions", "")
    } else if resized {
        ("cores were added to it, or removed", "")
    } else {
        return Ok(());
    };
    Err(cannot(name, why).hint(hint))
}

/// Its memory, each chunk with its offset in the node's object, in the order of the snapshot: the piece
/// below 1 MiB, which is no multiple of a granule, last.
fn chunks(handle: &Handle) -> Result<Vec<(u64, abi::Chunk)>, DriverError> {
    let chunks = handle.node.memory()?.chunks()?;
    let offsets = chunks.iter().scan(0, |end, chunk| {
        let start = *end;
        *end += chunk.size;
        Some(start)
    });
    let mut chunks: Vec<_> = offsets.zip(chunks.iter().copied()).collect();
    chunks.sort_by_key(|(_, chunk)| !chunk.size.is_multiple_of(abi::GRANULE));
    Ok(chunks)
}

/// A node that is paused until this is dropped, unless its user had paused it.
struct PausedNode<'a> {
    driver: &'a Driver,
    name: &'a Name,
    was_paused: bool,
    is_over: bool,
    states: Vec<Vec<u8>>,
    /// Dropped last: after the node goes on.
    _signals: DeferredSignals,
}

impl<'a> PausedNode<'a> {
    /// Pauses it at a moment at which none of its cores handles an interrupt.
    fn pause(driver: &'a Driver, name: &'a Name, handle: &Handle) -> Result<Self, Error> {
        let was_paused = handle.is_paused();
        let began = Instant::now();
        loop {
            if !was_paused {
                pause(driver, name)?;
            }
            let mut paused = Self {
                driver,
                name,
                was_paused,
                is_over: false,
                states: Vec::new(),
                _signals: DeferredSignals::new(),
            };
            paused.states = core_states(handle).map_err(|error| failed(name, error))?;
            if paused.is_usable()? {
                return Ok(paused);
            }
            if was_paused || began.elapsed() > MOMENT_TIMEOUT {
                return Err(cannot(name, "its cores handle interrupts all the time"));
            }
            paused.resume()?;
            sleep(INTERVAL);
        }
    }

    fn heads(&self) -> impl Iterator<Item = MonitorState> + '_ {
        let heads = self
            .states
            .iter()
            .map(|state| MonitorState::read_from_prefix(state));
        heads.filter_map(|head| Some(head.ok()?.0))
    }

    /// Whether cores can go on from the states.
    fn is_usable(&self) -> Result<bool, Error> {
        let are_there = self
            .heads()
            .all(|head| head.magic == abi::monitor::MONITOR_STATE_MAGIC);
        if !are_there {
            return Err(cannot(
                self.name,
                "its processors have states that cannot be saved",
            ));
        }
        Ok(self.heads().all(|head| head.in_service == 0))
    }

    /// The latest time stamp counter of a core.
    fn tsc(&self) -> u64 {
        self.heads().map(|head| head.tsc).max().unwrap_or_default()
    }

    fn resume(mut self) -> Result<(), Error> {
        self.is_over = true;
        match self.was_paused {
            true => Ok(()),
            false => resume(self.driver, self.name),
        }
    }
}

impl Drop for PausedNode<'_> {
    fn drop(&mut self) {
        if !self.is_over && !self.was_paused {
            // Another error is being reported already.
            let _ = resume(self.driver, self.name);
        }
    }
}

/// Signals that ask this process to end, deferred until this is dropped: a node must not stay paused.
struct DeferredSignals(Option<SigSet>);

impl DeferredSignals {
    fn new() -> Self {
        let ends: SigSet = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM]
            .into_iter()
            .collect();
        // If they cannot be deferred, they are not.
        Self(ends.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok())
    }
}

impl Drop for DeferredSignals {
    fn drop(&mut self) {
        // They were deferred so: it is valid.
        let _ = self.0.map(|before| before.thread_set_mask());
    }
}

/// Has the node's disks complete its requests. The indices of the other devices' virtqueues are read now:
/// buffers up to there are complete, whereas back ends may fill more of them while the memory is copied.
fn drained(handle: &Handle, node: &Name, disks: &[DiskFile]) -> Result<Drained, Error> {
    let drained = drain(handle.info.id).map_err(|error| failed(node, error))?;
    // If nobody serves them, nothing changes, either.
    let drained = drained.unwrap_or_default();
    match drained.files.len() == disks.len() {
        true => Ok(drained),
        false => Err(failed(node, "its supervisor does not serve its disks")),
    }
}

/// Offset in the snapshot of an address of the node.
fn offset_of(chunks: &[(u64, abi::Chunk)], address: u64) -> Option<u64> {
    let mut end = 0;
    chunks.iter().find_map(|&(_, chunk)| {
        let start = end;
        end += chunk.size;
        let inside = address.checked_sub(chunk.start)?;
        (inside < chunk.size).then_some(start + inside)
    })
}

/// Copies a paused node to a snapshot's memory.
fn copy_all(
    handle: &Handle,
    chunks: &[(u64, abi::Chunk)],
    states: &[Vec<u8>],
    used: &[UsedIndex],
    to: &Memory,
) -> Result<(), DriverError> {
    let memory = handle.node.memory()?;
    let mut end = 0;
    for &(from, chunk) in chunks {
        to.copy_from(&memory, from, end, chunk.size)?;
        end += chunk.size;
    }
    let mut mapping = to.map()?;
    for used in used {
        if let Some(at) = offset_of(chunks, used.address) {
            mapping.write(at, &used.index.to_le_bytes())?;
        }
    }
    for state in states {
        mapping.write(end, state)?;
        end += MONITOR_STATE_SIZE;
    }
    Ok(())
}

fn describe(
    handle: &Handle,
    record: &NodeRecord,
    chunks: &[(u64, abi::Chunk)],
    (tsc, processor): (u64, Processor),
) -> Result<Snapshot, Source> {
    let shown = |chunk: abi::Chunk| ShownChunk {
        start: chunk.start,
        size: chunk.size,
    };
    let shared = handle.node.shared_chunks()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(Snapshot {
        kind: SnapshotKind::Snapshot,
        node: insula_driver::name::text(&handle.info.name),
        release: record.release.clone(),
        states: chunks.iter().map(|(_, chunk)| chunk.size).sum(),
        memory: chunks.iter().map(|&(_, chunk)| shown(chunk)).collect(),
        shared: shared.into_iter().map(shown).collect(),
        disks: Vec::new(),
        cpus: handle.known_apic_ids(),
        tsc,
        power_off: handle.info.power_off,
        reset: handle.info.reset,
        monitor_sha256: monitor_digest()?,
        processor,
        record: serde_json::to_value(record)?,
        added_unix_s: now.map_or(0, |now| now.as_secs()),
    })
}

fn cannot(name: &Name, why: &str) -> Error {
    Error::new(format!("the node '{name}' cannot be copied: {why}")).unchanged()
}

fn failed(name: &Name, source: impl Into<Source>) -> Error {
    Error::new(format!("no snapshot of the node '{name}' could be taken"))
        .because(source)
        .nothing_kept()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_order_of_the_snapshot() {
        let chunk = |start, size| abi::Chunk { start, size };
        let chunks = [
            (0x9000, chunk(0x20_0000, 0x1000)),
            (0, chunk(0x1000, 0x800)),
        ];
        assert_eq!(offset_of(&chunks, 0x20_0ffe), Some(0xffe));
        assert_eq!(offset_of(&chunks, 0x1002), Some(0x1002));
        for outside in [0, 0x1800, 0x20_1000, u64::MAX] {
            assert_eq!(offset_of(&chunks, outside), None, "{outside:#x}");
        }
    }
}

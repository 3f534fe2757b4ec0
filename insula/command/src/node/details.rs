//! Everything that is known about a node, as JSON shows it.

use std::path::PathBuf;

use insula_driver::CallError;
use insula_node::attachment::{DiskFile, Volume};
use insula_node::device::AttachedDevice;
use insula_node::monitor_state::MonitorState;
use insula_node::policy::Policy;
use insula_node::{
    ChunkRecord, Described, Handle, LogRecord, NodeLog, NodeRecord, NodeSpec, NodeView,
    RootImageRecord,
};
use serde::Serialize;

/// Records shown of a crashed node's log: a panic, its registers and its call trace take about 50.
const LAST_RECORDS: usize = 80;

/// A node.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NodeDetails {
    #[serde(flatten)]
    view: NodeView,
    /// The time stamp counter at its start.
    start_tsc: u64,
    /// The same when its kernel was entered.
    entry_tsc: u64,
    /// Physical address of the byte that its kernel sets to power off.
    power_off_address: u64,
    /// That of the byte that it sets to reset.
    reset_address: u64,
    /// Missing if another version has started it.
    #[serde(flatten)]
    record: Option<RecordDetails>,
    /// The last lines of its log; only of a crashed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_log: Option<Vec<String>>,
    /// Devices that are or were attached to it.
    devices: Vec<AttachedDevice>,
    /// Its memory now: it may have grown since its start.
    memory: Vec<ChunkRecord>,
    /// Memory that it shares with other nodes.
    shared_memory: Vec<ChunkRecord>,
    /// What its monitor tells; only of a confined one.
    monitor: Option<MonitorState>,
}

/// What it was started from.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RecordDetails {
    /// The kernel's file.
    kernel: PathBuf,
    /// The initrd's file.
    initrd: Option<PathBuf>,
    /// The kernel's whole command line.
    command_line: String,
    /// Number of cores to which it can grow.
    cpus_max: usize,
    /// Physical load address of its kernel.
    kernel_address: u64,
    /// Physical load address of its initrd.
    initrd_address: u64,
    /// Physical address of the word with its power button's vector.
    power_button_address: u64,
    /// What it is to be.
    spec: NodeSpec,
    /// When it was created, in seconds since 1970.
    created_unix_s: u64,
    /// The file that describes it, if one does.
    described: Option<Described>,
    /// Its disks.
    disks: Vec<DiskFile>,
    /// Its volumes.
    volumes: Vec<Volume>,
    /// The folder of the base that is its root, if one is.
    root: Option<PathBuf>,
    /// The image in memory that is its root, if one is.
    root_image: Option<RootImageRecord>,
    /// When it is started again.
    policy: Policy,
    /// Number of restarts by that.
    restarts: u32,
}

impl NodeDetails {
    /// Reads them.
    ///
    /// # Errors
    /// The module's; `ENODEV` if the node was removed.
    pub(super) fn read(handle: &Handle) -> Result<Self, CallError> {
        let record = handle.record.as_ref();
        let chunks = handle.node.memory()?.chunks()?.into_iter();
        let shared = handle.node.shared_chunks()?.into_iter();
        Ok(Self {
            view: handle.view(),
            start_tsc: handle.info.start_tsc,
            entry_tsc: handle.info.entry_tsc,
            power_off_address: handle.info.power_off,
            reset_address: handle.info.reset,
            record: record.map(|record| RecordDetails::new(handle, record)),
            last_log: handle.is_crashed().then(|| last_lines(handle)),
            devices: handle.node.devices()?.iter().map(Into::into).collect(),
            memory: chunks.map(ChunkRecord::from).collect(),
            shared_memory: shared.map(ChunkRecord::from).collect(),
            // One that cannot be read is shown as none: the node may be starting anew.
            monitor: MonitorState::read(handle).unwrap_or(None),
        })
    }
}

impl RecordDetails {
    fn new(handle: &Handle, record: &NodeRecord) -> Self {
        Self {
            kernel: record.kernel.clone(),
            initrd: record.initrd.clone(),
            command_line: record.command_line.clone(),
            cpus_max: handle.cpus.len() + room(handle, record),
            kernel_address: record.kernel_address,
            initrd_address: record.initrd_address,
            power_button_address: record.power_button,
            spec: record.spec.clone(),
            created_unix_s: record.created_unix_s,
            described: record.described.clone(),
            disks: record.disks.clone(),
            volumes: record.volumes.clone(),
            root: record.root.clone(),
            root_image: record.root_image.clone(),
            policy: record.restart.policy,
            restarts: record.restart.history.restarts,
        }
    }
}

/// Number of cores that can still be added to it.
fn room(handle: &Handle, record: &NodeRecord) -> usize {
    let own: Vec<u32> = handle.cpus.iter().map(|cpu| cpu.apic_id).collect();
    record.room(&own).len()
}

/// Last lines of a node's log; none when it cannot be read.
fn last_lines(handle: &Handle) -> Vec<String> {
    let read = || {
        let log = NodeLog::open(handle).ok()?;
        log.last(log.locate()?, LAST_RECORDS).ok()
    };
    let records = read().unwrap_or_default();
    records.iter().map(LogRecord::text).collect()
}

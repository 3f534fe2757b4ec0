//! The supervisor's own process: what it needs, and what becomes of it when memory is short.

use insula_node::NodeRecord;
use insula_privilege::DeviceNeeds;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::clock;
use super::journal::Journal;

/// `oom_score_adj` of the supervisor; -1000 means never killed.
const OOM_SCORE: &str = "-900";

/// The needs of a node with this record, with or without PCI functions.
pub(super) fn device_needs(record: &NodeRecord, functions: bool) -> DeviceNeeds {
    DeviceNeeds {
        folder: record.root.is_some() || !record.volumes.is_empty(),
        disk: !record.disks.is_empty(),
        network: record.network.is_some(),
        functions,
        clock: clock::is_kept(record),
    }
}

/// Lowers the OOM score of this process and its children, since the node dies with a root that they
/// serve, and raises its descriptor limit for published ports.
pub(super) fn prepare_process(journal: &Journal) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        journal.error(&format!(
            "the supervisor's OOM score cannot be lowered: {error}"
        ));
    }
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        journal.error(&format!(
            "the limit of descriptors cannot be raised: {}",
            error.desc()
        ));
    }
}

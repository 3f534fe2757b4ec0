//! Nodes: kernels with cores and memory of their own.
//!
//! The module owns them; these are the command's operations on them. The module also keeps a node's
//! record, in JSON: what it was started from, and how to read its log.
//!
//! | module | concept |
//! |---|---|
//! | [`spec`] | what a node is to be: options, file, record |
//! | [`CreatedNode`] | a node that was created, and not started yet |
//! | [`cores`], [`memory`] | requests for cores and memory, and choosing them |
//! | [`device`] | PCI functions |
//! | [`networks`] | networks with names |
//! | [`attachment`] | folders, disks and the network, which the base serves by virtio |
//! | [`isolation`], [`monitor_state`] | confinement by a monitor, and what that tells |
//! | [`policy`] | restart policies |
//! | [`events`] | what has happened to nodes |
//! | [`delegation`] | what only nodes of the lightweight kernel have |
//! | [`stats`] | counters |
//! | [`nmi`] | interrupting the cores of a Linux node, for registers and backtraces |

mod agent_socket;
mod allocate;
pub mod attachment;
mod attachments;
mod claims;
mod clock;
mod copy;
mod copy_memory;
pub mod cores;
mod crash;
mod created;
pub mod delegation;
pub mod device;
mod dry_run;
mod end;
pub mod events;
mod findings;
mod forbidden;
mod generation;
mod host_name;
pub mod isolation;
mod kept_disks;
mod label;
mod log;
pub mod memory;
pub mod monitor_state;
mod naming;
pub mod networks;
pub mod nmi;
mod pause;
pub mod policy;
mod power_button;
mod record;
mod rename;
mod restart;
mod retry;
mod root;
mod root_image;
mod run;
mod setup;
mod shared_core;
mod snapshot;
pub mod spec;
pub mod stats;
mod timing;
mod unused_disks;
mod update;
mod variable;
mod view;
mod watch;

pub use agent_socket::connect_to_agent;
pub use attachments::Attachments;
pub use claims::{Claims, Conflict, current_network};
pub use clock::now_in_node as clock_now_in_node;
pub use copy::store_written_set;
pub use crash::{detect_crash, record_crash, wait_for_last_lines};
pub use created::{
    CreatedNode, create, created, created_names, find_created, forget_created, is_created,
    remove_created,
};
pub use dry_run::DryRun;
pub use end::{Stopped, kill, remove, stop, wait_for_supervisor_exit};
pub use findings::{NodeFinding, findings, forget_findings, keep_findings};
pub use forbidden::check_base;
pub use host_name::{HostName, NotAHostName};
pub use label::Label;
pub use log::{LogRecord, NodeLog, log_layout, no_log_yet};
pub use naming::BASE;
pub use pause::{is_paused, pause, resume};
pub use record::{ChunkRecord, CopyRecord, Described, NodeRecord, RestartRecord, no_record};
pub use rename::rename;
pub use restart::{RestartCause, check_restart, module_failed, restart, retired};
pub use retry::start;
pub use root::Root as NodeRoot;
pub use root_image::{RootImage, RootImageRecord};
pub use run::{RunRequest, Source, Started, cannot_publish, check_start};
pub use shared_core::{ShareBy, keep_off_shared_core, keep_proxy_off_shared_core};
pub use snapshot::{check_snapshot, snapshot};
pub use spec::{NetworkSpec, NodeSpec};
pub use timing::Timing;
pub use unused_disks::remove_unused_disks;
pub use update::{UpdateRequest, update};
pub use variable::{Variable, VariableError};
pub use view::{Handle, NodeView, all, find, unknown, unreadable};
pub use watch::read_rules;

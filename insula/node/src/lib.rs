//! Nodes: kernels with cores and memory of their own.
//!
//! The module owns them; these are the command's operations on them. The module also keeps a node's
//! record, in JSON: what it was started from, and how to read its log.
//!
//! | module | concept |
//! |---|---|
//! | [`cores`], [`memory`] | requests for cores and memory, and choosing them |
//! | [`device`] | PCI functions |
//! | [`attachment`] | folders, disks and the network, which the base serves by virtio |
//! | [`policy`] | restart policies |
//! | [`delegation`] | what only nodes of the lightweight kernel have |
//! | [`stats`] | counters |
//! | [`nmi`] | interrupting the cores of a Linux node, for registers and backtraces |

mod allocate;
pub mod attachment;
mod claims;
pub mod cores;
mod crash;
pub mod delegation;
pub mod device;
mod dry_run;
mod end;
mod forbidden;
mod log;
pub mod memory;
pub mod nmi;
pub mod policy;
mod power_button;
mod record;
mod restart;
mod retry;
mod root;
mod root_image;
mod run;
mod setup;
pub mod stats;
mod update;
mod view;

pub use claims::ClaimError;
pub use claims::{Claims, Conflict};
pub use crash::{detect_crash, record_crash, wait_for_last_lines};
pub use dry_run::DryRun;
pub use end::{EndError, Stopped, kill, remove, stop, wait_for_supervisor_exit};
pub use forbidden::Forbidden;
pub use log::log_layout;
pub use log::{LogError, LogRecord, NodeLog};
pub use record::{ChunkRecord, Described, NodeRecord, RestartRecord};
pub use restart::{RestartCause, RestartError, check_restart, restart};
pub use retry::start;
pub use root::{Root as NodeRoot, RootError};
pub use root_image::{RootImage, RootImageError, RootImageRecord};
pub use run::{RunError, RunRequest, Source, Started, Timing};
pub use update::{UpdateError, UpdateRequest, update};
pub use view::{FindError, Handle, NodeView, all, find};

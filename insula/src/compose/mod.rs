//! Many nodes, described in a file: `insula up`, `insula down`.
//!
//! ```text
//! file's text --file, reader--> Project --+
//!                                         +--plan--> Plan --up--> what runs
//! module, sysfs ---------------> Present -+
//! ```
//!
//! All that can be known to be wrong is found on the way to the plan, when nothing has been touched:
//! in one file by itself ([`Project::read`]), then between the files and with what the machine has
//! ([`Plan::new`]). A mistake is shown at the line at fault.
//!
//! A node remembers by which project it is described and the digest of that description
//! ([`Described`](crate::node::Described)): what is equal is left alone, and nothing that others
//! made is touched.

mod deed;
mod down;
mod file;
mod images;
mod lock;
mod mistake;
mod nodes;
mod order;
mod plan;
mod present;
mod project;
mod reader;
mod ready;
mod schedule;
mod sources;
mod take_down;
#[cfg(test)]
mod tests;
mod up;

pub use deed::{Deed, Event, ImageReport, NodeError, NodeReport, Report, Tell};
pub use down::{DownError, Scope, down};
pub use images::{ImageDeed, ImageStep};
pub use lock::{LockError, Locked, lock};
pub use mistake::{Mistake, Source, Span};
pub use nodes::{NodeDeed, NodeStep};
pub use order::Waits;
pub use plan::{Plan, PlanError};
pub use present::{Life, Present, PresentError, PresentNode};
pub use project::{FILE, Project, Ready, WantedBelongings, WantedImage, WantedKernel, WantedNode};
pub use ready::ReadyError;
pub use sources::{SourceError, sources};
pub use up::{UpError, up};

//! Nodes: kernels with cores and memory of their own.
//!
//! The module owns them; this is what the command does to them. A node's record, in JSON, is kept
//! by the module beside it and says what it was started from and how its log is read.

mod again;
mod claims;
mod end;
mod forbidden;
mod last_words;
mod log;
pub mod nmi;
mod power_button;
mod record;
mod root;
mod root_image;
mod run;
mod setup;
mod take;
mod trial;
mod update;
mod view;

pub use again::{AgainError, Wish, again};
pub use claims::ClaimError;
pub(crate) use claims::{Claims, Clash};
pub use end::{EndError, Stopped, kill, remove, stop, wait_until_left};
pub use forbidden::Forbidden;
pub use last_words::{note_crash, see_crash, wait_for_last_words};
pub(crate) use log::log_layout;
pub use log::{LogError, LogRecord, NodeLog};
pub use record::{ChunkRecord, Described, LifeRecord, NodeRecord};
pub use root::{Root as NodeRoot, RootError};
pub use root_image::{RootImage, RootImageError, RootImageRecord};
pub use run::{RunError, RunRequest, Source, Started, Timing, start};
pub use trial::Trial;
pub use update::{UpdateError, UpdateRequest, update};
pub use view::{FindError, Handle, NodeView, all, find};

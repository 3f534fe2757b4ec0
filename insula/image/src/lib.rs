//! Images: what a node boots.
//!
//! An image is a kernel with its initrd, or a *snapshot*: a node that has booted.
//!
//! A resident image is a memory object that holds the parts of a kernel and an initrd, each on a
//! page boundary, and a description in JSON with everything that a start needs to know, so that it
//! reads no file.

mod add;
mod bootable;
mod build;
mod built_in;
mod criu;
mod description;
mod digest;
mod files;
mod image_file;
mod initramfs;
mod modules;
mod processor;
mod snapshot;
mod store;
mod transfer;

pub use add::{AddRequest, Initrd, Prepared, add, built_in_description};
pub use bootable::{Bootable, LoadError};
pub use build::{BuildFiles, BuildRequest, build, build_initrd};
pub use built_in::{NAME as BUILT_IN, agent, companions, is_agent, proxy};
pub use description::{Content, Description, FileRecord, LogSource, Payload, ResidentLayout};
pub use digest::sha256;
pub use files::{Files, KernelFile, installed, installed_releases};
pub use initramfs::Initramfs;
pub use modules::{KernelModule, modules_with_dependencies};
pub use processor::{Processor, Unsuitable};
pub use snapshot::{
    ShownChunk, Snapshot, SnapshotDisk, SnapshotImage, SnapshotKind, add_snapshot, monitor_digest,
};
pub use store::{Image, Listing, Opened, list, open, open_any, remove};
pub use transfer::{Content as SavedContent, load, save};

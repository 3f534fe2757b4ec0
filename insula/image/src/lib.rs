//! Images: what a node boots.
//!
//! A resident image is a memory object that holds the parts of a kernel and an initrd, each on a
//! page boundary, and a description in JSON with everything that a start needs to know, so that it
//! reads no file.

mod add;
mod bootable;
mod build;
mod built_in;
mod description;
mod digest;
mod files;
mod image_file;
mod initramfs;
mod modules;
mod store;
mod transfer;

pub use add::{AddRequest, Initrd, Prepared, add};
pub use bootable::{Bootable, LoadError};
pub use build::{BuildFiles, BuildRequest, build, build_initrd};
pub use built_in::NAME as BUILT_IN;
pub use description::{Content, Description, FileRecord, LogSource, Payload, ResidentLayout};
pub use digest::sha256;
pub use files::{Files, KernelFile, installed, installed_releases};
pub use initramfs::Initramfs;
pub use modules::{KernelModule, modules_with_dependencies};
pub use store::{Image, Listing, list, open, remove};
pub use transfer::{load, save};

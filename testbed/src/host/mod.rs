//! Runs on the computer that runs the tests: fetches and builds kernels, root disks and payloads,
//! runs QEMU, plays scenarios and judges their outcome.

pub mod busybox;
pub mod debs;
pub mod ext4;
pub mod go;
pub mod kernels;
pub mod machine;
pub mod packages;
pub mod payload;
pub mod project;
pub mod root;
pub mod suites;
pub mod tool;
#[cfg(feature = "scenarios")]
pub mod trial;

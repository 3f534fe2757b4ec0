//! The emulated machine to test Insula on: Debian's kernels, a root disk, QEMU, and the scenarios
//! that are played inside.
//!
//! Parts of a test: [`kernels`] and [`root`] provide what boots, [`equipment`] the payload (the
//! command `insula`, insula.ko, the nodes' initial file system, the programs `insula-scenario` and
//! [`peer`]), [`machine`] runs QEMU, where the first process mounts the payload and runs
//! `insula-scenario NAME`; [`scenario`] is what that does. [`trial`] puts these together and judges
//! the outcome.
//!
//! No part needs privileges, and nothing is written outside of the build folder.

pub mod busybox;
pub mod debs;
pub mod equipment;
pub mod ext4;
pub mod kernels;
pub mod machine;
pub mod memory_fill;
pub mod module;
pub mod node;
pub mod packages;
pub mod payload;
pub mod peer;
pub mod probe;
pub mod programs;
pub mod project;
pub mod root;
pub mod scenario;
pub mod socket_peer;
pub mod tool;
pub mod trial;

//! Runs in the Linux nodes that scenarios start: the script that is their first process with its
//! parts, and program `insula-peer`, which talks to the base.

#[cfg(feature = "scenarios")]
pub mod memory_fill;
#[cfg(feature = "scenarios")]
pub mod peer;
#[cfg(feature = "scenarios")]
pub mod socket_peer;

/// First process, a shell script.
pub(crate) const INIT: &[u8] = include_bytes!("init");
/// Work with PCI functions, shell functions of the first process.
pub(crate) const DEVICES: &[u8] = include_bytes!("devices");
/// Shell function that measures a disk: `speed DISK`, which is overwritten.
pub const SPEED: &str = include_str!("speed");
/// Shell functions that load one core without end: `work FOLDER`, which logs how long each piece
/// took, and `noise FOLDER`, which disturbs others.
pub const WORK: &str = include_str!("work");

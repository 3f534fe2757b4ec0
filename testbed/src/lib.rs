//! The emulated machine to test Insula on, and the scenarios that are played in it.
//!
//! A folder says where its code runs: [`host`] on the computer that runs the tests, [`base`] on the
//! emulated machine, as root of its base, [`node`] in the Linux nodes that scenarios start there,
//! and [`lwk`] on the lightweight kernel. Each has the `main.rs` of its program.
//!
//! Parts of a test: [`host::kernels`] and [`host::root`] provide what boots,
//! [`host::payload::equipment`] what the machine gets (the command `insula`, insula.ko, the nodes'
//! initial file system, the programs of the other folders), [`host::machine`] runs QEMU, where the
//! first process mounts the payload and runs `insula-scenario NAME`; [`base::scenario`] is what that
//! does. [`host::trial`] puts these together and judges the outcome.
//!
//! Code of one folder uses another's only for what both sides must agree on: a scenario says by
//! [`host`]'s types which machine it needs, the base sends [`node::peer`]'s requests.
//!
//! No part needs privileges on the host, and nothing is written outside of the build folder.

#[cfg(feature = "scenarios")]
pub mod base;
pub mod host;
#[cfg(feature = "scenarios")]
pub mod lwk;
pub mod node;

//! Insula's benchmarks: what is measured, where, beside which peer, and the report.
//!
//! The way of a measurement: the program `insula-bench` (this machine) builds what is needed, with
//! the command as Debian's package has it ([`equipment`]), boots an emulated machine as often as the
//! [`plan`] says for each [`benchmark`], and lets `insula-bench-inside` play it there; what that
//! measures comes back as [`samples`]; peers that run on this machine are measured right after. What
//! the emulator itself is to count is asked for by [`marks`], of its plugin in `bench/counter`. Each
//! part's samples are kept in a file of their own ([`measured`]) as soon as it is done, so that parts
//! can be measured anew one by one; from all of them [`results`] and the [`report`] with its
//! [`plot`]s are made. What is to be kept in the repository must meet what [`record`] asks for.
//!
//! To add a benchmark: write `benchmark/NAME.rs` with a `pub(super) const BENCHMARK` and name it
//! in the list there.

pub mod answering;
pub mod benchmark;
pub mod circumstances;
mod counter;
pub mod equipment;
pub mod inside;
pub mod marks;
pub mod measured;
pub mod microvm;
pub mod others;
pub mod outside;
pub mod plan;
pub mod plot;
pub mod probe;
pub mod record;
pub mod report;
pub mod results;
pub mod rings;
pub mod samples;
mod sources;
pub mod statistics;
pub mod tcp;
pub mod trips;

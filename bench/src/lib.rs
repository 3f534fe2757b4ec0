//! Insula's benchmarks: what is measured, where, beside which peer, and the report.
//!
//! The way of a measurement: the program `insula-bench` (this machine) boots an emulated machine
//! for each [`benchmark`] and lets `insula-bench-inside` play it there; what that measures comes
//! back as [`samples`]; peers that run on this machine are measured right after. What the emulator
//! itself is to count is asked for by [`marks`], of its plugin in `bench/counter`. Each part's
//! samples are kept in a file of their own ([`measured`]), so that parts can be measured anew one
//! by one; from all of them [`results`] and the [`report`] with its [`plot`]s are made.
//!
//! To add a benchmark: write `benchmark/NAME.rs` with a `pub(super) const BENCHMARK` and name it
//! in the list there.

pub mod benchmark;
pub mod circumstances;
pub mod inside;
pub mod marks;
pub mod measured;
pub mod microvm;
pub mod outside;
pub mod plot;
pub mod probe;
pub mod report;
pub mod results;
pub mod samples;
pub mod statistics;
pub mod tcp;
pub mod trips;

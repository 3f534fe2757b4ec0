//! Insula's benchmarks, their peers, and the report.
//!
//! Steps of a measurement: the program `insula-bench` (on the host) builds the payload, with the
//! command of the Debian package ([`equipment`]), boots an emulated machine as often as the
//! [`plan`] says for each [`benchmark`], and lets `insula-bench-inside` play it there; its results
//! come back as [`samples`]; peers that run on the host are measured right after. Counts of the
//! emulator itself are requested by [`marks`] from its plugin in `bench/counter`. Each part's
//! samples are kept in a file of their own ([`measured`]) as soon as it is done, so that parts can
//! be measured again one by one; [`results`] and the [`report`] with its [`plot`]s are made from
//! all of them. Results for the repository must meet the conditions of [`record`].
//!
//! To add a benchmark: write `benchmark/NAME.rs` with a `pub(super) const BENCHMARK` and name it in
//! the list there.

pub mod benchmark;
pub mod blocks;
pub mod circumstances;
mod counter;
pub mod equipment;
pub mod held;
pub mod http;
pub mod inside;
pub mod load;
pub mod marks;
pub mod measured;
pub mod microvm;
pub mod moved;
pub mod others;
pub mod outside;
pub mod plan;
pub mod plot;
pub mod primitive;
pub mod probe;
pub mod record;
pub mod report;
pub mod responder;
pub mod results;
pub mod rings;
pub mod samples;
mod sources;
pub mod statistics;
pub mod tcp;
pub mod trips;

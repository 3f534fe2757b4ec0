//! Runs on the emulated machine, as root of its base: the first processes, the scenarios and what
//! they have in common, and a driver for tests (`driver/`).

mod base_state;
mod context;
mod finding;
mod runner;
pub mod scenario;
pub mod splat;
mod support;

pub use base_state::BaseState;
pub use context::Context;
pub use finding::Finding;
pub use runner::run;
pub use scenario::{Module, Scenario, Shape};
pub use support::last_look::before as show_before;
pub use support::nodes::hang::{HANG_SYMBOL, hang};

//! Random calls to the module, and calls that once did harm.

mod call;
mod found;
pub(super) mod fuzz;
mod harmless;
mod numbers;
mod real_time;
mod requests;
mod targets;

//! When a program is moved to a node, and back: the policies of `insula.toml`.
//!
//! ```text
//! /proc, probe --Measure--> Sample --Decider--> Decision --insula move--> time it stood still
//!              trace file --------^         ^------------- Cost <-------------------+
//! ```
//!
//! A [`Policy`] names a program, a node, and conditions on the load. The [`Decider`] takes a
//! [`Sample`] at a time and knows neither clock nor system, so [`simulate`] plays recorded loads
//! through the very same code, and compares it with the best that could have been done, had one
//! known all of the load before.
//!
//! A move is a purchase: it costs time in which the program stands still, and saves as long as the
//! load lasts, which nobody knows. As with skis that are rented or bought, one does well to go on
//! until what was lost has reached the price (Karlin et al., "Competitive snoopy caching", 1988). So
//! a decider counts the time for which the conditions have held, and moves once that is worth the
//! cost of a move, by those measured, and at least what the policy says.

mod condition;
mod cost;
mod decider;
mod measure;
mod policy;
mod sample;
mod simulation;

pub use condition::{Comparison, Condition, ConditionError, Metric};
pub use cost::Cost;
pub use decider::{Decider, Decision, Place, Reason};
pub use measure::Measure;
pub use policy::{Policy, PolicyError};
pub use sample::{Sample, TraceError, read_trace};
pub use simulation::{Losses, MoveMade, Outcome, simulate};

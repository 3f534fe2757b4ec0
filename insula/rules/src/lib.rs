//! Rules of a watcher: what it looks for, and what is done about what it finds.
//!
//! | | |
//! |---|---|
//! | [`Kind`] | kinds of findings |
//! | [`Action`] | what is done about one |
//! | [`Rules`] | all of that, with limits and exceptions: a file, or a part of a node's record |
//! | [`OwnCheck`], [`expression`] | checks of the user's own |
//! | [`WatchOption`] | one element of a node's `watch = [...]` |
//!
//! Nothing here knows a kernel: what a rule means for one is the watcher's business.

mod action;
mod check;
mod duration_s;
pub mod expression;
mod kind;
mod option;
mod rules;

pub use action::Action;
pub use check::{CheckError, OwnCheck, ParsedCheck, Walk};
pub use kind::Kind;
pub use option::{OptionError, Reaction, WatchOption};
pub use rules::{Allow, Limits, Memory, Rules, RulesError};

//! What each core runs: its loop, what waits there, what it steals.

pub(crate) mod core_loop;
pub(crate) mod stealing;
pub(crate) mod waiting;

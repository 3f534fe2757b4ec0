//! Messages between processes of a node: right words and bytes, ends of either side, bad calls.

mod ends;
mod memory;
mod processes;
mod requests;

use crate::lwk::ProbeError;

/// Plays everything; `kills` times a process of either side is killed at a random moment.
pub(crate) fn probe(kills: u64) -> Result<(), ProbeError> {
    requests::are_answered()?;
    requests::come_several_at_once()?;
    requests::urgent_ones_come_first()?;
    requests::leave_others_their_turns()?;
    memory::is_within_its_bounds()?;
    memory::may_be_a_files()?;
    ends::of_time()?;
    ends::of_handles()?;
    ends::of_a_server()?;
    ends::of_a_client()?;
    ends::by_signals()?;
    ends::at_random(kills)
}

fn wrong<T>(what: impl Into<String>) -> Result<T, ProbeError> {
    Err(ProbeError::Wrong(what.into()))
}

/// Fails with a message unless both are equal.
fn equal<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &T,
    expected: &T,
) -> Result<(), ProbeError> {
    match found == expected {
        true => Ok(()),
        false => wrong(format!("{what}: {found:?}, not {expected:?}")),
    }
}

//! How a node's clock differs from the base's.

use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use insula_agent::frame::{self, Reader};
use insula_agent::{ClockAnswer, ClockRequest, Request};
use insula_node::connect_to_agent;
use nix::time::{ClockId, clock_settime};

use crate::base::Finding;
use crate::base::support::insula_command::{insula_json, wait_for};

/// Largest difference of a clock that follows.
pub(crate) const ALLOWED_NS: u64 = 10_000_000;
/// Readings of a clock, of which the quickest counts.
const READINGS: u32 = 40;

/// Sets the base's clock forward or back.
pub(crate) fn set_base(by: Duration, forward: bool) -> Result<(), Finding> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let to = if forward { now + by } else { now - by };
    Ok(clock_settime(ClockId::CLOCK_REALTIME, to.into())?)
}

/// Waits until a node's clock is certainly as near as that.
pub(crate) fn comes_within(node: &str, most_ns: u64) -> Result<(), Finding> {
    let mut last = None;
    let within = wait_for(&format!("the clock of {node}"), || {
        last = difference(node)?;
        Ok(last.filter(|(ahead_ns, error_ns)| ahead_ns.unsigned_abs() + error_ns <= most_ns))
    });
    let seen = format!("it was last ahead by {last:?} ns, and not within {most_ns} ns");
    let (ahead_ns, error_ns) = within.map_err(|error| error.when(&seen))?;
    println!("{node} is ahead by {ahead_ns} ns, known within {error_ns} ns");
    Ok(())
}

/// By how much a node's clock is ahead of the base's, and by how much that may be wrong; none if its agent does not
/// answer yet.
pub(crate) fn difference(node: &str) -> Result<Option<(i64, u64)>, Finding> {
    let id = insula_json(&["inspect", node])?[0]["id"]
        .as_u64()
        .unwrap_or_default();
    let Ok(agent) = connect_to_agent(u32::try_from(id)?)? else {
        return Ok(None);
    };
    let agent = File::from(agent);
    frame::write(&agent, &Request::Clock)?;
    let mut reader = Reader::new(&agent);
    let mut best: Option<(i64, u64)> = None;
    for _ in 0..READINGS {
        let asked_ns = now_ns()?;
        frame::write(&agent, &ClockRequest::Read)?;
        let answer: Option<ClockAnswer> = reader.read()?;
        let answer = answer.ok_or_else(|| Finding::new("its agent has left"))?;
        let told_ns = answer.unix_ns;
        let took_ns = now_ns()?.saturating_sub(asked_ns);
        let ahead_ns = i64::try_from(told_ns)? - i64::try_from(asked_ns + took_ns / 2)?;
        if best.is_none_or(|(_, error_ns)| took_ns.div_ceil(2) < error_ns) {
            best = Some((ahead_ns, took_ns.div_ceil(2)));
        }
    }
    Ok(best)
}

/// The base's time, in nanoseconds since 1970.
fn now_ns() -> Result<u64, Finding> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_nanos())?)
}

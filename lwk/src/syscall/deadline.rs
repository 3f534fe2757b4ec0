//! Timeouts of local calls.

use crate::hw::clock;
use crate::model::errno::Errno;
use crate::task::thread::Thread;

/// Reads a timeout in ns; `None` at address 0.
pub(super) fn time_ns(thread: &mut Thread, address: u64) -> Result<Option<u64>, Errno> {
    const NS_PER_S: u64 = 1_000_000_000;
    if address == 0 {
        return Ok(None);
    }
    let mut bytes = [0; 16];
    thread.process.space().read(address, &mut bytes)?;
    let half = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (seconds, ns) = (half(0), half(8));
    if ns >= NS_PER_S || (seconds as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Some(seconds.saturating_mul(NS_PER_S).saturating_add(ns)))
}

/// Converts a relative timeout to the kernel's clock, in ns; `None` at address 0.
pub(super) fn deadline(thread: &mut Thread, timeout: u64) -> Result<Option<u64>, Errno> {
    let Some(time_ns) = time_ns(thread, timeout)? else {
        return Ok(None);
    };
    // A restarted call keeps its deadline.
    let deadline_ns = *thread
        .call_deadline_ns
        .get_or_insert_with(|| deadline_after(time_ns));
    Ok(Some(deadline_ns))
}

/// Adds a timeout, and slack, to the current time.
pub(super) fn deadline_after(time_ns: u64) -> u64 {
    /// Linux' default (`PR_SET_TIMERSLACK`): some programs rely on very short timeouts being
    /// longer.
    const SLACK_NS: u64 = 50_000;
    let slack_ns = if time_ns > 0 { SLACK_NS } else { 0 };
    clock::now_ns()
        .saturating_add(time_ns)
        .saturating_add(slack_ns)
}

//! Keeping a node's clock with the base's.
//!
//! Both run by the same time stamp counter, but the base's is corrected, by NTP or by hand. So the agent of a
//! Linux node is told from time to time, and whenever the base's clock is set, what that shows at a value of
//! the counter, as the node finds it. The agent has its clock follow ([`ClockRequest::Follow`]).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use insula_agent::frame::{self, Reader};
use insula_agent::{ClockAnswer, ClockRequest, Request};
use insula_driver::Driver;
use insula_node::monitor_state::tsc_offset;
use insula_node::{Handle, NodeRecord, clock_now_in_node, connect_to_agent};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use socket2::Socket;

use super::journal::Journal;

/// Time between two readings. The base's clock is slewed by 0.5 ms a second at most, so the node's is never off by
/// more than half of what is allowed.
const INTERVAL: Duration = Duration::from_secs(8);
/// Time that the agent has to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Connections in a row that the agent ends, after which it is left alone: it logs each.
const UNKNOWN_MAX: u32 = 3;
/// A time that is never reached, in seconds since 1970.
const NEVER_S: i64 = i32::MAX as i64 * 8;

/// Whether the clock of such a node is kept with the base's.
pub(super) fn is_kept(record: &NodeRecord) -> bool {
    record.is_linux() && !record.spec.no_clock_sync
}

/// A thread that keeps the clock of a running node. It ends with this.
#[derive(Debug)]
pub(super) struct ClockSync {
    /// Number of the node's start.
    start: u64,
    ended: Arc<EventFd>,
}

impl ClockSync {
    /// Begins, if the node has a clock to be kept.
    pub(super) fn start(driver: &Arc<Driver>, handle: &Handle, journal: &Journal) -> Option<Self> {
        handle.record.as_ref().filter(|record| is_kept(record))?;
        let (driver, journal) = (Arc::clone(driver), journal.clone());
        let node = handle.info.id;
        let offset = tsc_offset(handle).map_err(|error| error.to_string());
        let ended = Arc::new(EventFd::new().ok()?);
        let until = Arc::clone(&ended);
        let keep = move || {
            let kept = offset.and_then(|offset| {
                let kept = keep(&driver, Counter { node, offset }, &until);
                kept.map_err(|error| error.desc().to_owned())
            });
            // Told once a run: what has failed is not tried again.
            if let Err(why) = kept {
                journal.error(&format!("its clock is not kept: {why}"));
            }
        };
        // Without a thread it has its clock all the same.
        thread::Builder::new()
            .name("clock".into())
            .spawn(keep)
            .ok()?;
        Some(Self {
            start: handle.info.starts,
            ended,
        })
    }

    /// Whether it belongs to the node's present run.
    pub(super) fn is_of(&self, handle: &Handle) -> bool {
        self.start == handle.info.starts
    }
}

impl Drop for ClockSync {
    fn drop(&mut self) {
        // The thread ends by itself: it may wait for an agent that does not answer.
        let _ = self.ended.write(1);
    }
}

/// Where a node finds the time stamp counter.
#[derive(Clone, Copy, Debug)]
struct Counter {
    /// Id of the node.
    node: u32,
    /// By how much its counter is ahead of the base's, modulo 2^64.
    offset: u64,
}

/// What has become of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Done,
    /// The agent is not there, or does not answer now.
    NoAnswer,
    /// The agent has ended the connection, as one of an older version does.
    Unknown,
}

/// Tells the node the time, until `ended` is written or its agent does not know the request.
fn keep(driver: &Driver, counter: Counter, ended: &EventFd) -> nix::Result<()> {
    let (machine, _) = driver.machine().map_err(|error| error.errno)?;
    let mut unknown = 0;
    while unknown < UNKNOWN_MAX {
        // Set before the reading: it is not missed that the clock is set meanwhile.
        let set = timer()?;
        unknown = match tell(counter, machine.tsc_khz)? {
            Told::Done => 0,
            Told::NoAnswer => unknown,
            Told::Unknown => unknown + 1,
        };
        let timeout = PollTimeout::try_from(INTERVAL).unwrap_or(PollTimeout::MAX);
        let mut wanted = [
            PollFd::new(ended.as_fd(), PollFlags::POLLIN),
            PollFd::new(set.as_fd(), PollFlags::POLLIN),
        ];
        // Only a signal can interrupt it; then the node is told early.
        let _ = poll(&mut wanted, timeout);
        if wanted[0].any().unwrap_or(true) {
            break;
        }
    }
    Ok(())
}

/// A timer that is readable once the base's clock has been set.
fn timer() -> nix::Result<TimerFd> {
    let timer = TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_CLOEXEC)?;
    let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
    timer.set(Expiration::OneShot(TimeSpec::new(NEVER_S, 0)), flags)?;
    Ok(timer)
}

fn tell(counter: Counter, tsc_khz: u32) -> nix::Result<Told> {
    let Ok(stream) = connect_to_agent(counter.node)? else {
        return Ok(Told::NoAnswer);
    };
    let stream = Socket::from(stream);
    let ask = || {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        frame::write(&stream, &Request::Clock)?;
        let now = clock_now_in_node(tsc_khz, counter.offset);
        frame::write(&stream, &ClockRequest::Follow(now))
    };
    if ask().is_err() {
        return Ok(Told::NoAnswer);
    }
    Ok(match Reader::new(&stream).read::<ClockAnswer>() {
        Ok(Some(_)) => Told::Done,
        Ok(None) => Told::Unknown,
        Err(_) => Told::NoAnswer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_waits() {
        let timer = timer().unwrap();
        let mut wanted = [PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut wanted, PollTimeout::ZERO), Ok(0));
    }
}

//! The node's clock, which has nothing to run by but the time stamp counter.

use std::io;
use std::time::Duration;

use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::{ClockAnswer, ClockRequest};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use socket2::Socket;

/// Answers the base's requests about the clock, until it asks no more.
pub(crate) fn serve(stream: &Socket, mut reader: Reader<Socket>) -> Result<(), FrameError> {
    while let Some(request) = reader.read()? {
        let done = match request {
            ClockRequest::Read => Ok(()),
            ClockRequest::Adjust(by_ns) => adjust(by_ns),
        };
        let answer = ClockAnswer {
            unix_ns: now_ns(),
            error: done.err().map(|error: io::Error| error.to_string()),
        };
        frame::write(stream, &answer)?;
    }
    Ok(())
}

/// Sets the clock to a time in nanoseconds since 1970.
pub(crate) fn set(unix_ns: u64) -> io::Result<()> {
    let time = Timespec::try_from(Duration::from_nanos(unix_ns)).map_err(|_| Errno::INVAL)?;
    Ok(clock_settime(ClockId::Realtime, time)?)
}

fn adjust(by_ns: i64) -> io::Result<()> {
    let to_ns = now_ns().checked_add_signed(by_ns);
    set(to_ns.ok_or(Errno::INVAL)?)
}

/// The time in nanoseconds since 1970; 0 before that.
fn now_ns() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Realtime)).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

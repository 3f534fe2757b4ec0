//! Calls about files, as far as they could meet what is the proxy's own.

use alloc::boxed::Box;

use super::{Flow, answer, delegate, number};
use crate::process::Thread;
use crate::process::errno::Errno;

/// close_range(2): below and above the proxy's own descriptor.
pub(super) fn close_range(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    /// `CLOSE_RANGE_UNSHARE`: the proxy's threads share their files, as the program's do.
    const UNSHARE: u64 = 2;
    let [first, last, flags, ..] = a.map(|word| u64::from(word as u32));
    let own = thread.process.pages().descriptor();
    if flags & UNSHARE != 0 {
        return answer(thread, Err(Errno::EINVAL));
    }
    if !(first..=last).contains(&own) {
        return delegate(thread, number::CLOSE_RANGE, a);
    }
    if first < own
        && let Err(error) = thread.call(number::CLOSE_RANGE, [first, own - 1, flags, 0, 0, 0])
    {
        return answer(thread, Err(error));
    }
    match own < last {
        true => delegate(thread, number::CLOSE_RANGE, [own + 1, last, flags, 0, 0, 0]),
        false => answer(thread, Ok(0)),
    }
}

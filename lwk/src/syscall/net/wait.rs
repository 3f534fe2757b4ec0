//! Waiting for sockets of a network server, and for descriptors of the base beside them.
//!
//! What sockets are ready for this kernel knows by itself. As long as they have something to do, the base
//! is asked for its descriptors each 10 ms only; a call that finds nothing to do waits for sockets alone
//! for 1 ms, and then for both: the base in a call of its own, which is cancelled when a socket is ready.
//! So under traffic no call goes to the base, and an event of the base is seen after 10 ms at most.

use core::future::poll_fn;
use core::task::Poll;

use crate::base::polling;
use crate::base::proxy_pointers::mask_proxy_pointers;
use crate::hw::clock;
use crate::model::errno::Errno;
use crate::task::socket::Waiter;
use crate::task::thread::Thread;

/// How often the base is looked at while sockets are ready.
const LOOK_NS: u64 = 10_000_000;
/// How long sockets alone are waited for.
const ALONE_NS: u64 = 1_000_000;

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// What was waited for is there.
    Ready,
    /// A signal has come, or the thread shall exit.
    Interrupted,
    /// The time is over.
    Expired,
}

/// What ends a wait by now.
fn woken(
    thread: &Thread,
    deadline_ns: Option<u64>,
    is_ready: &mut impl FnMut() -> bool,
) -> Option<Woken> {
    if is_ready() {
        return Some(Woken::Ready);
    }
    if thread.must_not_block() || thread.handle.is_signal_pending() {
        return Some(Woken::Interrupted);
    }
    match deadline_ns?.checked_sub(clock::now_ns()) {
        None | Some(0) => Some(Woken::Expired),
        Some(left_ns) => {
            polling::poll_after(left_ns);
            None
        }
    }
}

/// Waits for sockets, whose readiness `is_ready` looks at.
pub(super) async fn wait(
    thread: &mut Thread,
    deadline_ns: Option<u64>,
    mut is_ready: impl FnMut() -> bool,
) -> Woken {
    let _waiter = Waiter::register();
    poll_fn(move |_| match woken(thread, deadline_ns, &mut is_ready) {
        Some(woken) => Poll::Ready(woken),
        None => Poll::Pending,
    })
    .await
}

/// A call of the base that looks at its descriptors, or waits for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct BaseCall {
    /// Its number.
    pub(super) number: u64,
    /// Its arguments, but for the timeout.
    pub(super) arguments: [u64; 6],
    /// Which argument is its timeout.
    pub(super) timeout: usize,
    /// A timeout of no time, and one without an end.
    pub(super) times: [u64; 2],
}

impl BaseCall {
    /// Returns the arguments for the base: the program's, and a timeout that may be this kernel's.
    fn with(self, thread: &Thread, time: usize) -> [u64; 6] {
        let process = &thread.process;
        let bounds = process.pages().bounds();
        let mut arguments = mask_proxy_pointers(self.arguments, bounds, process.region());
        arguments[self.timeout] = self.times[time];
        arguments
    }

    /// Whether it is time to look at the base although sockets are ready.
    pub(super) fn is_due(thread: &Thread) -> bool {
        clock::now_ns() >= thread.looked_ns.saturating_add(LOOK_NS)
    }

    /// Has the base look at its descriptors. Returns the call's result.
    pub(super) async fn look(self, thread: &mut Thread) -> Result<u64, Errno> {
        thread.looked_ns = clock::now_ns();
        let arguments = self.with(thread, 0);
        thread
            .remote_syscall_as_kernel(self.number, arguments)
            .await
    }

    /// Waits for descriptors of the base, and for sockets. Returns what has ended it, or the call's
    /// result.
    pub(super) async fn wait(
        self,
        thread: &mut Thread,
        deadline_ns: Option<u64>,
        mut is_ready: impl FnMut() -> bool,
    ) -> Result<Woken, Result<u64, Errno>> {
        let alone_ns = clock::now_ns().saturating_add(ALONE_NS);
        let first_ns = deadline_ns.map_or(alone_ns, |deadline_ns| deadline_ns.min(alone_ns));
        match wait(thread, Some(first_ns), &mut is_ready).await {
            Woken::Expired => {}
            woken => return Ok(woken),
        }
        let _waiter = Waiter::register();
        loop {
            let mut cause = None;
            let arguments = self.with(thread, 1);
            let result = thread
                .waiting_syscall(self.number, arguments, |thread| {
                    cause = cause.or_else(|| woken(thread, deadline_ns, &mut is_ready));
                    cause.is_some()
                })
                .await;
            thread.looked_ns = clock::now_ns();
            match (result, cause) {
                (Err(Errno::EINTR), Some(cause)) => return Ok(cause),
                // Of a signal that somebody else has handled.
                (Err(Errno::EINTR), None) if !thread.must_not_block() => {}
                (Err(Errno::EINTR), None) => return Ok(Woken::Interrupted),
                (result, _) => return Err(result),
            }
        }
    }
}

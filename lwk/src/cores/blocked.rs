//! Threads that wait for the base, and handlers, which are futures.
//!
//! Each core polls its own. No wakers are needed: the base rings the core for the threads whose
//! syscall slots have its doorbell, a handler that waits for a time notes it, and who ends what
//! others wait for wakes all cores ([`poll_all`]).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Poll;

use super::{CORES_MAX, mark_interrupted, number, schedule, wake_all};
use crate::clock;
use crate::process::{Flow, Handler, ProxyExited, Thread};

/// What waits on a core.
#[derive(Debug)]
enum Blocked {
    /// A thread whose call is delegated.
    Call(Box<Thread>),
    /// A handler, with its thread.
    Handler(Handler),
}

/// What waits on each core; only the core itself uses it.
static WAITING: [spin::Mutex<Vec<Blocked>>; CORES_MAX] =
    [const { spin::Mutex::new(Vec::new()) }; CORES_MAX];
/// Doorbell by which the base wakes each core for what waits there; 0 while it is awake.
static DOORBELLS: [AtomicU64; CORES_MAX] = [const { AtomicU64::new(0) }; CORES_MAX];
/// Time at which each core polls again without being woken, in ns since boot.
static POLL_AT_NS: [AtomicU64; CORES_MAX] = [const { AtomicU64::new(NEVER) }; CORES_MAX];
const NEVER: u64 = u64::MAX;
/// Whether a reply has arrived on each core since it last checked.
static HAS_REPLIES: [AtomicBool; CORES_MAX] = [const { AtomicBool::new(false) }; CORES_MAX];

fn waiting() -> &'static spin::Mutex<Vec<Blocked>> {
    &WAITING[number() as usize % CORES_MAX]
}

fn armed() -> &'static AtomicU64 {
    &DOORBELLS[number() as usize % CORES_MAX]
}

fn poll_at() -> &'static AtomicU64 {
    &POLL_AT_NS[number() as usize % CORES_MAX]
}

fn has_replies() -> &'static AtomicBool {
    &HAS_REPLIES[number() as usize % CORES_MAX]
}

/// Notes that a reply has arrived on this core.
pub(crate) fn note_reply() {
    has_replies().store(true, Ordering::Relaxed);
}

/// Whether a reply has arrived on this core since the last call.
pub(super) fn take_replies() -> bool {
    has_replies().swap(false, Ordering::Relaxed)
}

/// Returns the doorbell that the slots of this core's threads are to have; 0 while it is awake.
pub(crate) fn armed_doorbell() -> u64 {
    armed().load(Ordering::Relaxed)
}

/// Sets that doorbell. The next poll puts it into the slots.
pub(super) fn arm_doorbell(doorbell: u64) {
    armed().store(doorbell, Ordering::Relaxed);
}

/// Has this core poll what waits there after a time, in ns. For futures, each time that they are
/// polled.
pub(crate) fn poll_after(ns: u64) {
    poll_at().fetch_min(clock::now_ns().saturating_add(ns), Ordering::Relaxed);
}

/// Returns the time at which this core polls again without being woken.
pub(super) fn next_poll_ns() -> Option<u64> {
    match poll_at().load(Ordering::Relaxed) {
        NEVER => None,
        at_ns => Some(at_ns),
    }
}

/// Waits until a time, in ns since boot.
pub(crate) async fn sleep_until(end_ns: u64) {
    poll_fn(|_| match end_ns.checked_sub(clock::now_ns()) {
        None | Some(0) => Poll::Ready(()),
        Some(left_ns) => {
            poll_after(left_ns);
            Poll::Pending
        }
    })
    .await;
}

/// Has all cores, the calling one included, poll what waits there.
pub(crate) fn poll_all() {
    mark_interrupted();
    wake_all();
}

/// Whether anything waits on this core.
pub(super) fn is_any_waiting() -> bool {
    !waiting().lock().is_empty()
}

/// Has a thread, whose extended state is saved, wait for the base's reply to its call.
pub(super) fn wait_for_reply(thread: Box<Thread>) {
    waiting().lock().push(Blocked::Call(thread));
}

/// Runs a handler until it is ready; if it has to wait, keeps it among what waits here.
pub(super) fn run_handler(mut handler: Handler) -> Option<Flow> {
    match handler.poll() {
        Poll::Ready(flow) => Some(flow),
        Poll::Pending => {
            waiting().lock().push(Blocked::Handler(handler));
            None
        }
    }
}

/// Makes threads ready whose replies have arrived, runs the handlers that can go on, and ends
/// threads whose proxy has exited.
pub(super) fn poll_waiting() {
    poll_at().store(NEVER, Ordering::Relaxed);
    // Taken out: what is made ready here may add to the list.
    let mut polled = core::mem::take(&mut *waiting().lock());
    let mut at = 0;
    loop {
        while at < polled.len() {
            match poll_one(&mut polled, at) {
                Some(flow) => schedule::dispatch(flow),
                None => at += 1,
            }
        }
        let mut list = waiting().lock();
        if list.is_empty() {
            *list = polled;
            return;
        }
        polled.append(&mut list);
    }
}

/// Polls one of a list. Takes it out if it is ready.
fn poll_one(list: &mut Vec<Blocked>, at: usize) -> Option<Flow> {
    let to_flow: fn(Box<Thread>) -> Flow = match &mut list[at] {
        Blocked::Handler(handler) => {
            let Poll::Ready(flow) = handler.poll() else {
                return None;
            };
            drop(list.swap_remove(at));
            return Some(flow);
        }
        Blocked::Call(thread) => match thread.poll() {
            Ok(None) => {
                thread.interrupt_for_signal();
                return None;
            }
            Ok(Some((result, _))) => {
                thread.complete_call(result);
                Flow::Continue
            }
            Err(ProxyExited) => Flow::Exit,
        },
    };
    match list.swap_remove(at) {
        Blocked::Call(thread) => Some(to_flow(thread)),
        Blocked::Handler(handler) => Some(Flow::Handler(handler)),
    }
}

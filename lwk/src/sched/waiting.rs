//! What waits for the base on each core: threads whose calls are delegated, and handlers, which are
//! futures. Each core polls its own.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::Poll;

use insula_bare::cpu;

use crate::base::polling;
use crate::hw::cores::{CORES_MAX, doorbell, is_interrupted, number};
use crate::hw::interrupts::is_doorbell_pending;
use crate::hw::{clock, shared_core};
use crate::task::flow::{Flow, Handler};
use crate::task::reap::end_thread;
use crate::task::remote::ProxyExited;
use crate::task::run_queue::{enqueue, enqueue_front, has_more};
use crate::task::service;
use crate::task::thread::Thread;

/// Time for which a core polls for the reply to a call before it runs other threads.
const SPIN_IN_PLACE_US: u32 = 20;
/// Time within which most short calls are answered: until then the core polls without a pause.
const SPIN_EAGERLY_US: u32 = 3;
/// Time for which an idle core polls for the reply to a call.
const POLL_FOR_CALL_US: u32 = 50;
/// Time for which it does for what this kernel itself has asked for: that is answered soon. To wake
/// the core takes the base a while, in which it would not see the next request; if the core slept
/// again before that, each request would cost a sleep.
const POLL_FOR_HANDLER_US: u32 = 200;

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

fn waiting() -> &'static spin::Mutex<Vec<Blocked>> {
    &WAITING[number() as usize % CORES_MAX]
}

/// Returns the time for which this core, which is idle, polls for replies before it sleeps, in ticks
/// of the time stamp counter.
pub(super) fn polling_time() -> u64 {
    let is_handler = |one: &Blocked| matches!(one, Blocked::Handler(_));
    let waiting = waiting().lock();
    match waiting.is_empty() || shared_core::is_shared() {
        true => 0,
        false if waiting.iter().any(is_handler) => clock::us_to_ticks(POLL_FOR_HANDLER_US),
        false => clock::us_to_ticks(POLL_FOR_CALL_US),
    }
}

/// Has a thread, whose extended state is saved, wait for the base's reply to its call.
pub(super) fn wait_for_reply(thread: Box<Thread>) {
    waiting().lock().push(Blocked::Call(thread));
}

/// Polls for the reply to the call of the thread that this core runs, unless there is something
/// else to do: short calls are answered before the thread's state could be saved and loaded again.
/// Returns whether the call is complete.
pub(super) fn spin_for_reply(thread: &mut Thread) -> bool {
    // The base need not ring for this slot; it does for those of others that wait here.
    polling::arm_doorbell(0);
    let began = clock::stamp();
    let [eager, all] = match shared_core::is_shared() {
        true => [0, 0],
        false => [SPIN_EAGERLY_US, SPIN_IN_PLACE_US].map(clock::us_to_ticks),
    };
    let own = number();
    let is_undisturbed = || !has_more(own, 0) && !is_doorbell_pending() && !is_interrupted();
    let is_complete = loop {
        match thread.poll() {
            Ok(Some(reply)) => {
                thread.complete_call(reply);
                break true;
            }
            Ok(None) if is_undisturbed() => {
                let spent = clock::stamp().wrapping_sub(began);
                if spent >= all {
                    break false;
                }
                cpu::poll_interrupts();
                if spent >= eager {
                    cpu::relax();
                }
            }
            Ok(None) | Err(ProxyExited) => break false,
        }
    };
    polling::arm_doorbell(doorbell());
    is_complete
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

/// Queues, ends, or has wait a thread that does not run on this core.
pub(super) fn dispatch(flow: Flow) {
    match flow {
        Flow::Continue(thread) | Flow::Yield(thread) | Flow::Switch(thread) => enqueue(thread),
        Flow::Preempted(thread) => enqueue_front(thread),
        Flow::Delegated(thread) => wait_for_reply(thread),
        Flow::Handler(handler) => {
            if let Some(flow) = run_handler(handler) {
                dispatch(flow);
            }
        }
        Flow::Blocked => {}
        Flow::Exit(thread) => end_thread(thread),
    }
}

/// Makes threads ready whose replies have arrived, runs the handlers that can go on, and ends
/// threads whose proxy has exited.
pub(super) fn poll_waiting() {
    polling::begin_poll();
    service::retry_faults();
    // Taken out: what is made ready here may add to the list.
    let mut polled = core::mem::take(&mut *waiting().lock());
    let mut at = 0;
    loop {
        while at < polled.len() {
            match poll_one(&mut polled, at) {
                Some(flow) => dispatch(flow),
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
            Ok(Some(reply)) => {
                thread.complete_call(reply);
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

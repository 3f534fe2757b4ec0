//! The scheduler: which thread a core runs.
//!
//! Each core has a run queue of ready threads, from which other cores may steal, and a list of what
//! waits for the base ([`super::blocked`]), which only the core itself polls. No core waits for the
//! base itself: while a thread does, the core runs others. If none is ready, it polls for the
//! base's reply for a while, as most replies arrive within microseconds. Then it sleeps, and the
//! base rings its doorbell.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, Ordering};

use insula_bare::user::Trap;
use insula_bare::{apic, cpu};

use super::{
    AREA, CORES_MAX, Counter, DOORBELL_PENDING, ack_interrupts, blocked, count, doorbell,
    handle_interrupt, is_interrupted, number, stealing, switch_page_table, wake,
};
use crate::process::scheduling::Priority;
use crate::process::{self, Flow, Handler, Thread};
use crate::{clock, log, syscall};

/// Time for which an idle core polls for replies before it sleeps.
const SPIN_NS: u64 = 50_000;

/// Run queue of each core: its ready threads.
static READY: [spin::Mutex<VecDeque<Box<Thread>>>; CORES_MAX] =
    [const { spin::Mutex::new(VecDeque::new()) }; CORES_MAX];

/// Length of each run queue, written with the queue locked. A core that reads 0 need not lock the
/// queue.
static READY_COUNTS: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];

fn ready_count(core: u32) -> &'static AtomicU32 {
    &READY_COUNTS[core as usize % CORES_MAX]
}

/// Changes a core's run queue.
fn change_ready<T>(core: u32, change: impl FnOnce(&mut VecDeque<Box<Thread>>) -> T) -> T {
    let mut queue = ready(core).lock();
    let result = change(&mut queue);
    ready_count(core).store(queue.len() as u32, Ordering::SeqCst);
    result
}

fn ready(core: u32) -> &'static spin::Mutex<VecDeque<Box<Thread>>> {
    &READY[core as usize % CORES_MAX]
}

/// Puts a ready thread into its core's run queue, behind others of its priority.
pub(crate) fn enqueue(thread: Box<Thread>) {
    let (core, allowed) = (thread.core, thread.handle.cores());
    change_ready(core, |queue| queue.push_back(thread));
    wake(core);
    stealing::kick_idle(core, &allowed);
}

/// Puts a preempted thread into its core's run queue, before others of its priority.
fn enqueue_front(thread: Box<Thread>) {
    let (core, allowed) = (thread.core, thread.handle.cores());
    change_ready(core, |queue| queue.push_front(thread));
    wake(core);
    stealing::kick_idle(core, &allowed);
}

/// Returns the position of the thread to run next. A thread's priority may change while it is
/// queued.
fn next(queue: &VecDeque<Box<Thread>>) -> Option<(usize, Priority)> {
    highest_priority(queue.iter().enumerate())
}

/// Returns the position of the next thread that may run on core `core`, if more than `reserved` are
/// queued.
fn next_for(queue: &VecDeque<Box<Thread>>, reserved: usize, core: u32) -> Option<usize> {
    let all = queue.iter().enumerate();
    let allowed = all.filter(|(_, thread)| thread.handle.cores().holds(core));
    let next = highest_priority(allowed).filter(|_| queue.len() > reserved);
    next.map(|(place, _)| place)
}

/// Returns the first of the threads with the highest priority.
fn highest_priority<'a>(
    threads: impl Iterator<Item = (usize, &'a Box<Thread>)>,
) -> Option<(usize, Priority)> {
    threads
        .map(|(place, thread)| (place, thread.handle.priority()))
        .reduce(|best, other| match other.1.is_above(&best.1) {
            true => other,
            false => best,
        })
}

/// Whether more than `reserved` threads are ready on a core, and one of them may run on core
/// `other`.
pub(super) fn has_ready_for(core: u32, reserved: usize, other: u32) -> bool {
    has_more(core, reserved) && next_for(&ready(core).lock(), reserved, other).is_some()
}

/// Dequeues that thread.
pub(super) fn take_ready_for(core: u32, reserved: usize, other: u32) -> Option<Box<Thread>> {
    if !has_more(core, reserved) {
        return None;
    }
    change_ready(core, |queue| {
        let place = next_for(queue, reserved, other)?;
        queue.remove(place)
    })
}

/// Whether more than `reserved` threads seem to be ready on a core; does not lock.
fn has_more(core: u32, reserved: usize) -> bool {
    ready_count(core).load(Ordering::SeqCst) as usize > reserved
}

/// Returns the priority of the next ready thread of this core.
fn next_priority() -> Option<Priority> {
    if !has_more(number(), 0) {
        return None;
    }
    let queue = ready(number()).lock();
    next(&queue).map(|(_, priority)| priority)
}

/// Dequeues the next ready thread of this core.
fn take_next() -> Option<Box<Thread>> {
    if !has_more(number(), 0) {
        return None;
    }
    change_ready(number(), |queue| {
        let (place, _) = next(queue)?;
        queue.remove(place)
    })
}

/// Main loop of a core.
pub(crate) fn run() -> ! {
    loop {
        service_pending();
        match take_next().or_else(stealing::steal) {
            Some(thread) => {
                stealing::set_running();
                run_thread(thread);
                blocked::arm_doorbell(0);
                stealing::set_searching();
            }
            None => idle(),
        }
    }
}

/// Services everything that an interrupt may have announced.
fn service_pending() {
    ack_interrupts();
    service_base();
    expire_timeouts();
    blocked::poll_waiting();
}

fn service_base() {
    if DOORBELL_PENDING.swap(false, Ordering::AcqRel)
        && let Some(&area) = AREA.get()
    {
        process::service_pending(area);
    }
    process::reap();
}

/// Queues, ends, or has wait a thread that does not run on this core.
pub(super) fn dispatch(flow: Flow) {
    match flow {
        Flow::Continue(thread) | Flow::Yield(thread) => enqueue(thread),
        Flow::Preempted(thread) => enqueue_front(thread),
        Flow::Delegated(thread) => blocked::wait_for_reply(thread),
        Flow::Handler(handler) => {
            if let Some(flow) = blocked::run_handler(handler) {
                dispatch(flow);
            }
        }
        Flow::Blocked => {}
        Flow::Exit(thread) => end_thread(thread),
    }
}

/// Ends a thread that is in no queue.
pub(crate) fn end_thread(mut thread: Box<Thread>) {
    thread.release_locks();
    thread.process.save_thread_dump(&thread);
    stealing::detach(&thread);
    drop(thread);
    process::reap();
}

/// While a thread runs, the core polls for no replies: the base is to ring.
fn arm_doorbells() {
    blocked::arm_doorbell(doorbell());
    // Replies that have arrived already.
    blocked::poll_waiting();
}

/// Without a ready thread: polls for replies for a while, then sleeps until an interrupt.
fn idle() {
    let own = number();
    let is_quiet = || {
        blocked::poll_waiting();
        let is_none_ready = !has_more(own, 0);
        is_none_ready && !DOORBELL_PENDING.load(Ordering::Acquire) && !is_interrupted()
    };
    if !stealing::set_idle() {
        return stealing::set_searching();
    }
    let mut spin_end_ns = clock::now_ns() + SPIN_NS;
    while blocked::is_any_waiting() && clock::now_ns() < spin_end_ns {
        if !is_quiet() {
            return stealing::set_searching();
        }
        // A handler may have made its next call.
        if blocked::take_replies() {
            spin_end_ns = clock::now_ns() + SPIN_NS;
        }
        cpu::poll_interrupts();
    }
    blocked::arm_doorbell(doorbell());
    if is_quiet() {
        sleep();
    }
    blocked::arm_doorbell(0);
    stealing::set_searching();
}

/// Returns the time at which this core has to look after its threads, in ns since boot: the
/// earliest timeout, or when what waits here is polled again.
fn next_deadline() -> Option<u64> {
    let timeout_ns = process::next_deadline(number());
    timeout_ns.into_iter().chain(blocked::next_poll_ns()).min()
}

/// Wakes threads whose timeout has expired.
fn expire_timeouts() {
    let (own, now_ns) = (number(), clock::now_ns());
    if process::next_deadline(own).is_some_and(|deadline_ns| deadline_ns <= now_ns) {
        process::expire(own, now_ns);
    }
}

/// Arms the timer of this core, if a time is given; [`stop_timer`] disarms it.
fn set_timer(at_ns: Option<u64>) {
    if let Some(at_ns) = at_ns {
        apic::set_timer(clock::tsc_at(at_ns), clock::tsc_khz());
    }
}

fn stop_timer(at_ns: Option<u64>) {
    if at_ns.is_some() {
        apic::stop_timer();
    }
}

/// Halts until an interrupt or the next timeout.
fn sleep() {
    let deadline_ns = next_deadline();
    set_timer(deadline_ns);
    cpu::wait_for_interrupt();
    stop_timer(deadline_ns);
}

/// Runs a thread until it blocks, exits, or its time slice ends.
fn run_thread(mut thread: Box<Thread>) {
    count(Counter::Switches);
    arm_doorbells();
    load(&mut thread);
    process::rseq::resume(&mut thread);
    loop {
        match run_once(thread) {
            Flow::Continue(same) => thread = same,
            Flow::Yield(same) if keeps_core(&same, true) => thread = same,
            Flow::Handler(handler) => match run_handler(handler) {
                Some(same) => thread = same,
                None => return,
            },
            Flow::Yield(mut same) => {
                same.extended.save();
                return enqueue(same);
            }
            Flow::Preempted(mut same) => {
                same.extended.save();
                return enqueue_front(same);
            }
            Flow::Delegated(mut same) => {
                same.extended.save();
                return blocked::wait_for_reply(same);
            }
            Flow::Blocked => return,
            Flow::Exit(same) => return end_thread(same),
        }
    }
}

/// Makes this core's page table and extended state those of the thread that it runs next.
fn load(thread: &mut Thread) {
    switch_page_table(thread.process.space().root());
    thread.extended.load();
}

/// Runs a handler of the thread that this core runs. Returns the thread if it goes on at once.
fn run_handler(handler: Handler) -> Option<Box<Thread>> {
    // If it has to wait, the core polls for its reply first.
    blocked::arm_doorbell(0);
    match blocked::run_handler(handler)? {
        Flow::Continue(mut thread) => {
            arm_doorbells();
            // The handler may have changed both.
            load(&mut thread);
            Some(thread)
        }
        flow => {
            dispatch(flow);
            None
        }
    }
}

/// Does what is due before a thread returns to its program, or else runs the program until it
/// enters the kernel.
fn run_once(thread: Box<Thread>) -> Flow {
    let mut thread = match before_program(thread) {
        Flow::Continue(thread) => thread,
        flow => return flow,
    };
    if !thread.context.can_run() {
        syscall::force_segv(&thread);
        return Flow::Continue(thread);
    }
    // The kernel itself takes interrupts while it waits for another core: service what they
    // announced before the thread runs on.
    if is_interrupted() {
        service_pending();
        return Flow::Continue(thread);
    }
    match enter_program(&mut thread) {
        Trap::Syscall => syscall::execute(thread),
        Trap::Exception {
            vector,
            error,
            address,
        } => syscall::exception(thread, vector, error, address),
        Trap::Interrupt(vector) => {
            handle_interrupt(vector);
            service_pending();
            flow_after_interrupt(thread)
        }
    }
}

/// Decides whether a thread may return to its program; does what it has to do before.
fn before_program(mut thread: Box<Thread>) -> Flow {
    if thread.needs_load {
        return process::load_program(thread);
    }
    let is_exiting = thread.process.is_exiting();
    if thread.has_pending_exec() && !is_exiting {
        return Flow::handler(thread, syscall::complete_exec);
    }
    if thread.is_killed_by_exec() && !is_exiting {
        thread.exit_for_exec();
        return Flow::Exit(thread);
    }
    if thread.process.is_stopped() {
        match process::wait_while_stopped(thread) {
            Some(same) => thread = same,
            None => return Flow::Blocked,
        }
    }
    if thread.has_uncaught_signal() {
        return process::restore_proxy_handler(thread);
    }
    process::deliver_signals(&mut thread);
    if thread.stopping.is_some() {
        return process::stop(thread);
    }
    if thread.process.is_exiting() {
        thread.extended.save();
        return exit_running(thread);
    }
    choose_core(thread)
}

/// Has a thread run on another core, or later, if its affinity or a higher priority demands that.
fn choose_core(mut thread: Box<Thread>) -> Flow {
    if stealing::migrate(&mut thread) {
        thread.extended.save();
        enqueue(thread);
        return Flow::Blocked;
    }
    match is_outranked(&thread) {
        true => Flow::Preempted(thread),
        false => Flow::Continue(thread),
    }
}

/// Whether a thread keeps the core although others are ready; `yields`: it called sched_yield(2).
fn keeps_core(thread: &Thread, yields: bool) -> bool {
    let priority = thread.handle.priority();
    next_priority().is_none_or(|next| priority.keeps_core(&next, yields))
}

/// Whether a ready thread has a higher priority.
fn is_outranked(thread: &Thread) -> bool {
    let priority = thread.handle.priority();
    next_priority().is_some_and(|next| next.is_above(&priority))
}

/// Decides how to go on with a thread after an interrupt.
fn flow_after_interrupt(thread: Box<Thread>) -> Flow {
    let priority = thread.handle.priority();
    match next_priority() {
        Some(next) if next.is_above(&priority) => Flow::Preempted(thread),
        Some(next) if !priority.keeps_core(&next, false) => Flow::Yield(thread),
        _ => Flow::Continue(thread),
    }
}

/// Ends a thread whose process exits, and whose extended state is saved.
fn exit_running(thread: Box<Thread>) -> Flow {
    match thread.dumping_core {
        // The other threads may need this core to exit.
        Some(_) if !thread.is_alone() => {
            enqueue(thread);
            Flow::Blocked
        }
        Some(signal) => process::dump(thread, signal),
        None => Flow::Exit(thread),
    }
}

/// Enters the program, with the timer armed if another thread is ready or a timeout is pending.
fn enter_program(thread: &mut Thread) -> Trap {
    let priority = thread.handle.priority();
    let slice_ns = (!keeps_core(thread, false)).then(|| priority.slice_ns());
    let slice_end_ns = slice_ns.map(|slice_ns| clock::now_ns() + slice_ns);
    let until_ns = slice_end_ns.into_iter().chain(next_deadline()).min();
    set_timer(until_ns);
    count(Counter::Entries);
    let is_first_core = number() == 0;
    if is_first_core {
        log::set_in_program(true);
    }
    let start = clock::stamp();
    #[cfg(target_os = "none")]
    let trap = thread.context.run();
    #[cfg(not(target_os = "none"))]
    let trap = thread.context.trap();
    if is_first_core {
        log::set_in_program(false);
    }
    thread.account_run_time(clock::stamp().wrapping_sub(start));
    stop_timer(until_ns);
    trap
}

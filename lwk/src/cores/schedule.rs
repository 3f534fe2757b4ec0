//! The scheduler: which thread a core runs.
//!
//! Each core has a run queue of ready threads, from which other cores may steal, and a list of
//! threads that wait for the base, which only the core itself polls. While no other thread is
//! ready, a core spins for the base's reply for a while, as most replies arrive within
//! microseconds. Then it sleeps, and the base rings its doorbell.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use insula_bare::user::Trap;
use insula_bare::{apic, cpu};

use super::{
    AREA, CORES_MAX, Counter, DOORBELL_PENDING, ack_interrupts, count, doorbell, handle_interrupt,
    is_interrupted, number, stealing, switch_page_table, wake,
};
use crate::process::scheduling::Priority;
use crate::process::{self, ProxyExited, Thread};
use crate::syscall::{self, Flow};
use crate::{clock, log};

/// Time for which an idle core polls for replies before it sleeps; period in which a core that
/// spins looks after its other threads.
const SPIN_NS: u64 = 50_000;

/// Period in which a core retries a remote fault that lacks memory.
const MEMORY_RETRY_NS: u64 = 10_000_000;

/// Run queue of each core: its ready threads.
static READY: [spin::Mutex<VecDeque<Box<Thread>>>; CORES_MAX] =
    [const { spin::Mutex::new(VecDeque::new()) }; CORES_MAX];

/// Threads of each core that wait for the base.
static WAITING: [spin::Mutex<Vec<Box<Thread>>>; CORES_MAX] =
    [const { spin::Mutex::new(Vec::new()) }; CORES_MAX];

fn waiting() -> &'static spin::Mutex<Vec<Box<Thread>>> {
    &WAITING[number() as usize % CORES_MAX]
}

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
    collect_replies();
}

fn service_base() {
    if DOORBELL_PENDING.swap(false, Ordering::AcqRel)
        && let Some(&area) = AREA.get()
    {
        process::service_pending(area);
    }
    process::reap();
}

/// Makes threads ready whose replies have arrived; ends those whose proxy has exited.
fn collect_replies() {
    let ended = take_replies();
    ended.into_iter().for_each(end_thread);
}

/// Makes threads ready whose replies have arrived. Returns those whose proxy has exited: ending
/// them would keep the list locked for too long.
fn take_replies() -> Vec<Box<Thread>> {
    let mut waiting = waiting().lock();
    let (mut at, mut ended) = (0, Vec::new());
    while at < waiting.len() {
        match waiting[at].poll() {
            Ok(None) => {
                waiting[at].interrupt_for_signal();
                at += 1;
            }
            Ok(Some((result, _))) => {
                let mut thread = waiting.swap_remove(at);
                thread.slot.set_doorbell(0);
                thread.complete_call(result);
                enqueue(thread);
            }
            Err(ProxyExited) => ended.push(waiting.swap_remove(at)),
        }
    }
    ended
}

/// Resolves remote faults of threads that wait here, while a thread of this core spins for the
/// base.
pub(crate) fn resolve_remote_faults() {
    if let Some(mut waiting) = waiting().try_lock() {
        waiting
            .iter_mut()
            .for_each(|thread| thread.try_resolve_remote_fault());
    }
}

/// Duties of a core that spins for a reply to a remote call.
#[derive(Debug)]
pub(crate) struct SpinWait {
    /// Time of the next check, in ns since boot.
    next_check_ns: u64,
}

impl SpinWait {
    /// Starts spinning.
    pub(crate) fn begin() -> Self {
        let next_check_ns = clock::now_ns() + SPIN_NS;
        Self { next_check_ns }
    }

    /// Makes threads ready whose replies have arrived, so that other cores can steal them, and
    /// forwards the base's doorbell to other cores. Does so once per `SPIN_NS`.
    pub(crate) fn hand_off_ready(&mut self) {
        let now_ns = clock::now_ns();
        if now_ns < self.next_check_ns {
            return;
        }
        self.next_check_ns = now_ns + SPIN_NS;
        expire_timeouts();
        complete_answered_calls();
        if DOORBELL_PENDING.load(Ordering::Acquire) {
            super::wake_all();
        }
    }
}

/// Makes threads ready whose calls the base has completed. It does nothing else for them: the
/// caller on this core may hold their address space or the list.
fn complete_answered_calls() {
    let Some(mut waiting) = waiting().try_lock() else {
        return;
    };
    let mut at = 0;
    while at < waiting.len() {
        match waiting[at].take_reply() {
            true => {
                let mut thread = waiting.swap_remove(at);
                thread.slot.set_doorbell(0);
                enqueue(thread);
            }
            false => {
                waiting[at].interrupt_for_signal();
                at += 1;
            }
        }
    }
}

/// Whether a thread that waits here needs memory that others will free: no interrupt announces
/// that.
fn is_any_waiting_for_memory() -> bool {
    waiting()
        .lock()
        .iter()
        .any(|thread| thread.is_waiting_for_memory())
}

/// Sets the doorbell by which the base wakes the threads that wait here; 0 while the core is awake.
fn set_doorbells(doorbell: u64) {
    for thread in waiting().lock().iter_mut() {
        thread.slot.set_doorbell(doorbell);
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
    set_doorbells(doorbell());
    // Replies that have arrived already.
    collect_replies();
}

/// Without a ready thread: polls for replies for a while, then sleeps until an interrupt.
fn idle() {
    let own = number();
    let is_quiet = || {
        collect_replies();
        let is_none_ready = !has_more(own, 0) && !is_any_waiting_for_memory();
        is_none_ready && !DOORBELL_PENDING.load(Ordering::Acquire) && !is_interrupted()
    };
    if !stealing::set_idle() {
        return stealing::set_searching();
    }
    let spin_end = clock::now_ns() + SPIN_NS;
    while !waiting().lock().is_empty() && clock::now_ns() < spin_end {
        if !is_quiet() {
            return stealing::set_searching();
        }
        cpu::poll_interrupts();
    }
    set_doorbells(doorbell());
    if is_quiet() {
        sleep();
    }
    set_doorbells(0);
    stealing::set_searching();
}

/// Returns the earliest timeout of this core's threads, in ns since boot.
fn next_deadline() -> Option<u64> {
    process::next_deadline(number())
}

/// Wakes threads whose timeout has expired.
fn expire_timeouts() {
    let now_ns = clock::now_ns();
    if next_deadline().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
        process::expire(number(), now_ns);
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
    switch_page_table(thread.process.space().root());
    count(Counter::Switches);
    arm_doorbells();
    if thread.needs_load {
        process::load_program(&mut thread);
    }
    thread.extended.load();
    if thread.has_pending_exec() {
        match syscall::resume_exec(thread) {
            Flow::Continue(same) => thread = same,
            _ => return,
        }
    }
    process::rseq::resume(&mut thread);
    loop {
        if thread.is_killed_by_exec() && !thread.process.is_exiting() {
            thread.exit_for_exec();
            return end_thread(thread);
        }
        if thread.process.is_stopped() {
            match process::wait_while_stopped(thread) {
                Some(same) => thread = same,
                None => return,
            }
        }
        process::deliver_signals(&mut thread);
        if thread.is_stopping {
            return wait_for_base(thread);
        }
        if !thread.context.can_run() && !thread.process.is_exiting() {
            syscall::force_segv(&thread);
            continue;
        }
        if thread.process.is_exiting() {
            thread.extended.save();
            return exit_running(thread);
        }
        if stealing::migrate(&mut thread) {
            thread.extended.save();
            return enqueue(thread);
        }
        if is_outranked(&thread) {
            thread.extended.save();
            return enqueue_front(thread);
        }
        // The kernel itself takes interrupts while it waits for another core: service what they
        // announced before the thread runs on.
        if is_interrupted() {
            service_pending();
            continue;
        }
        let flow = match enter_program(&mut thread) {
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
        };
        match flow {
            Flow::Continue(same) => thread = same,
            Flow::Yield(same) if keeps_core(&same, true) => thread = same,
            Flow::Yield(mut same) => {
                same.extended.save();
                return enqueue(same);
            }
            Flow::Preempted(mut same) => {
                same.extended.save();
                return enqueue_front(same);
            }
            Flow::Delegated(same) => return wait_for_base(same),
            Flow::Blocked => return,
            Flow::Exit(same) => return end_thread(same),
        }
    }
}

/// Puts a thread on the list of those that wait for the base.
fn wait_for_base(mut thread: Box<Thread>) {
    thread.extended.save();
    waiting().lock().push(thread);
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

/// Ends a running thread.
fn exit_running(mut thread: Box<Thread>) {
    match thread.dumping_core {
        // The other threads may need this core to exit.
        Some(_) if !thread.is_alone() => return enqueue(thread),
        Some(signal) => process::dump(&mut thread, signal),
        None => {}
    }
    end_thread(thread);
}

/// Enters the program, with the timer armed if another thread is ready or a timeout is pending.
fn enter_program(thread: &mut Thread) -> Trap {
    let priority = thread.handle.priority();
    let slice_ns = (!keeps_core(thread, false)).then(|| priority.slice_ns());
    let next_check_ns = is_any_waiting_for_memory().then_some(MEMORY_RETRY_NS);
    let slice = slice_ns.into_iter().chain(next_check_ns).min();
    let slice = slice.map(|slice_ns| clock::now_ns() + slice_ns);
    let until_ns = slice.into_iter().chain(next_deadline()).min();
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

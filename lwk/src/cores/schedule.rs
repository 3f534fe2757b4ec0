//! Which thread a core runs.
//!
//! Each core has a queue of threads that are ready, which others may put threads into, and a list
//! of its own of those that wait for the base. As long as nobody else wants the core, a thread that
//! has asked the base is waited for actively, for a while: an answer mostly comes within
//! microseconds. Then the core sleeps, and the base rings.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved from list to list, by its address"
)]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use insula_bare::user::Trap;
use insula_bare::{apic, cpu};

use super::{
    AREA, CORES_MAX, LEAVE, RUNG, TIMEKEEPER, doorbell, interrupted, number, state, up, use_space,
    wake,
};
use crate::calls::{self, Flow};
use crate::clock;
use crate::process::{self, Gone, Thread};
use crate::start::kernel_root;

/// How long a thread runs while others wait for the core.
const SLICE_NS: u64 = 10_000_000;
/// How long a core looks for answers before it sleeps.
const PATIENCE_NS: u64 = 50_000;

static READY: [spin::Mutex<VecDeque<Box<Thread>>>; CORES_MAX] =
    [const { spin::Mutex::new(VecDeque::new()) }; CORES_MAX];
/// Threads that belong to each core.
static LOAD: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];

fn ready(core: u32) -> &'static spin::Mutex<VecDeque<Box<Thread>>> {
    &READY[core as usize % CORES_MAX]
}

/// The core with the fewest threads. One more is counted there.
pub(crate) fn least_loaded() -> u32 {
    let cores = 0..up();
    let least = cores.min_by_key(|&core| LOAD[core as usize].load(Ordering::Relaxed));
    let core = least.unwrap_or(0);
    LOAD[core as usize].fetch_add(1, Ordering::Relaxed);
    core
}

/// Puts a thread that is ready into its core's queue.
pub(crate) fn send(thread: Box<Thread>) {
    let core = thread.core;
    ready(core).lock().push_back(thread);
    wake(core);
}

/// Has a thread belong to another core, to which it goes when it is next sent.
pub(crate) fn move_to(thread: &mut Thread, core: u32) {
    LOAD[thread.core as usize].fetch_sub(1, Ordering::Relaxed);
    LOAD[core as usize].fetch_add(1, Ordering::Relaxed);
    thread.core = core;
}

/// What a core does from its start to its end.
pub(crate) fn run() -> ! {
    let own = number();
    let mut waiting: Vec<Box<Thread>> = Vec::new();
    loop {
        look_at_the_base();
        keep_time();
        collect(&mut waiting);
        let next = ready(own).lock().pop_front();
        match next {
            Some(thread) => run_thread(thread, &mut waiting),
            None => idle(&mut waiting),
        }
    }
}

fn look_at_the_base() {
    if RUNG.swap(false, Ordering::AcqRel)
        && let Some(&area) = AREA.get()
    {
        process::look(area);
    }
    process::tend();
}

/// Makes those ready whose answers have come; ends those who have nobody to ask any more.
fn collect(waiting: &mut Vec<Box<Thread>>) {
    let mut at = 0;
    while at < waiting.len() {
        match waiting[at].poll() {
            Ok(None) => at += 1,
            Ok(Some((result, _))) => {
                let mut thread = waiting.swap_remove(at);
                thread.context.registers.rax = result;
                send(thread);
            }
            Err(Gone) => end(waiting.swap_remove(at)),
        }
    }
}

fn end(thread: Box<Thread>) {
    LOAD[thread.core as usize].fetch_sub(1, Ordering::Relaxed);
    drop(thread);
    process::tend();
}

/// Nobody is ready: looks for answers for a while, then sleeps until an interrupt.
fn idle(waiting: &mut Vec<Box<Thread>>) {
    let own = number();
    let is_quiet = |waiting: &mut Vec<Box<Thread>>| {
        collect(waiting);
        ready(own).lock().is_empty() && !RUNG.load(Ordering::Acquire)
    };
    let patience_end = clock::now_ns() + PATIENCE_NS;
    while !waiting.is_empty() && clock::now_ns() < patience_end {
        if !is_quiet(waiting) {
            return;
        }
        cpu::take_interrupts();
    }
    leave_if_wanted();
    waiting
        .iter()
        .for_each(|thread| thread.desk.set_doorbell(doorbell()));
    if is_quiet(waiting) {
        sleep();
    }
    waiting
        .iter()
        .for_each(|thread| thread.desk.set_doorbell(0));
}

/// A page table that is about to be freed is left.
fn leave_if_wanted() {
    let root = state(number()).root.load(Ordering::Relaxed);
    if root != 0 && LEAVE.load(Ordering::SeqCst) == root {
        use_space(kernel_root());
    }
}

/// The time at which this core has to look whom to wake.
fn next_deadline() -> Option<u64> {
    match number() {
        TIMEKEEPER => process::next_deadline(),
        _ => None,
    }
}

/// Wakes those whose time has come.
fn keep_time() {
    let now_ns = clock::now_ns();
    if next_deadline().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
        process::expire(now_ns);
    }
}

/// Has the timer interrupt this core at a time, if at any; [`stop_timer`] ends that.
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

/// Halts until an interrupt, or until somebody's time has come.
fn sleep() {
    let deadline_ns = next_deadline();
    set_timer(deadline_ns);
    cpu::wait_for_interrupt();
    stop_timer(deadline_ns);
}

/// Runs a thread until it has to wait, ends, or has had its share.
fn run_thread(mut thread: Box<Thread>, waiting: &mut Vec<Box<Thread>>) {
    use_space(thread.process.space().root());
    if thread.is_new {
        process::program(&mut thread);
    }
    thread.extended.load();
    loop {
        if let Some(status) = fatal_status(&thread) {
            thread.exit_process(status);
        }
        if thread.process.is_ending() {
            return end(thread);
        }
        let flow = match run_once(&mut thread) {
            Trap::Syscall => calls::execute(thread),
            Trap::Exception {
                vector,
                error,
                address,
            } => calls::exception(thread, vector, error, address),
            Trap::Interrupt(vector) => {
                interrupted(vector);
                look_at_the_base();
                keep_time();
                collect(waiting);
                Flow::Yield(thread)
            }
        };
        match flow {
            Flow::On(same) => thread = same,
            Flow::Yield(same) if same.core == number() && ready(number()).lock().is_empty() => {
                thread = same;
            }
            Flow::Yield(mut same) => {
                same.extended.save();
                return send(same);
            }
            Flow::Wait(mut same) => {
                same.extended.save();
                return waiting.push(same);
            }
            Flow::Away => return,
            Flow::End(same) => return end(same),
        }
    }
}

/// The status with which a thread's process is to end now, if it is.
fn fatal_status(thread: &Thread) -> Option<u64> {
    let cannot_run = !thread.context.can_run();
    let status = cannot_run.then_some(calls::SEGMENTATION_FAULT);
    thread.process.fatal_signal().or(status)
}

/// Enters the program; with a timer, if somebody else wants the core, or waits for a time.
fn run_once(thread: &mut Thread) -> Trap {
    let is_shared = !ready(number()).lock().is_empty();
    let slice = is_shared.then(|| clock::now_ns() + SLICE_NS);
    let until_ns = slice.into_iter().chain(next_deadline()).min();
    set_timer(until_ns);
    #[cfg(target_os = "none")]
    let trap = thread.context.run();
    #[cfg(not(target_os = "none"))]
    let trap = thread.context.trap();
    stop_timer(until_ns);
    trap
}

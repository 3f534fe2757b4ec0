//! Which thread a core runs.
//!
//! Each core has a queue of threads that are ready, which others may put threads into and take them
//! from, and a list of those that wait for the base, which only it looks at. As long as nobody else
//! wants the core, a thread that has asked the base is waited for actively, for a while: an answer
//! mostly comes within microseconds. Then the core sleeps, and the base rings.

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
    AREA, CORES_MAX, Counter, RUNG, balance, count, doorbell, heed_interrupts, interrupted,
    is_interrupted, number, use_space, wake,
};
use crate::calls::{self, Flow};
use crate::process::scheduling::Priority;
use crate::process::{self, Gone, Thread};
use crate::{clock, log};

/// How long a core looks for answers before it sleeps.
const PATIENCE_NS: u64 = 50_000;

/// How often it is looked whether there is memory for a thread in a call that the base makes.
const MEMORY_PERIOD_NS: u64 = 10_000_000;

/// Threads that are ready, of each core.
static READY: [spin::Mutex<VecDeque<Box<Thread>>>; CORES_MAX] =
    [const { spin::Mutex::new(VecDeque::new()) }; CORES_MAX];

/// Those that wait for the base, of each core.
static WAITING: [spin::Mutex<Vec<Box<Thread>>>; CORES_MAX] =
    [const { spin::Mutex::new(Vec::new()) }; CORES_MAX];

fn waiting() -> &'static spin::Mutex<Vec<Box<Thread>>> {
    &WAITING[number() as usize % CORES_MAX]
}

/// How many of them there are: changed only by who has the queue, and seen before that is taken.
/// Whoever finds none need not take it.
static READY_COUNTS: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];

fn ready_count(core: u32) -> &'static AtomicU32 {
    &READY_COUNTS[core as usize % CORES_MAX]
}

/// Changes a core's queue.
fn change_ready<T>(core: u32, change: impl FnOnce(&mut VecDeque<Box<Thread>>) -> T) -> T {
    let mut queue = ready(core).lock();
    let result = change(&mut queue);
    ready_count(core).store(queue.len() as u32, Ordering::SeqCst);
    result
}

fn ready(core: u32) -> &'static spin::Mutex<VecDeque<Box<Thread>>> {
    &READY[core as usize % CORES_MAX]
}

/// Puts a thread that is ready into its core's queue, behind its equals.
pub(crate) fn send(thread: Box<Thread>) {
    let (core, allowed) = (thread.core, thread.notice.cores());
    change_ready(core, |queue| queue.push_back(thread));
    wake(core);
    balance::offer(core, &allowed);
}

/// The same of one that has been interrupted, before its equals.
fn send_back(thread: Box<Thread>) {
    let (core, allowed) = (thread.core, thread.notice.cores());
    change_ready(core, |queue| queue.push_front(thread));
    wake(core);
    balance::offer(core, &allowed);
}

/// The place in a queue of the one to run next. How urgent one is may change while it is there.
fn next(queue: &VecDeque<Box<Thread>>) -> Option<(usize, Priority)> {
    most_urgent(queue.iter().enumerate())
}

/// The same of those that may run on another core, if there are more than `spare`.
fn next_for(queue: &VecDeque<Box<Thread>>, spare: usize, core: u32) -> Option<usize> {
    let all = queue.iter().enumerate();
    let allowed = all.filter(|(_, thread)| thread.notice.cores().holds(core));
    let next = most_urgent(allowed).filter(|_| queue.len() > spare);
    next.map(|(place, _)| place)
}

/// Of the most urgent the first.
fn most_urgent<'a>(
    threads: impl Iterator<Item = (usize, &'a Box<Thread>)>,
) -> Option<(usize, Priority)> {
    threads
        .map(|(place, thread)| (place, thread.notice.priority()))
        .reduce(|best, other| match other.1.is_above(&best.1) {
            true => other,
            false => best,
        })
}

/// Whether more than `spare` threads are ready at a core, and one of them may run on another.
pub(super) fn is_ready_for(core: u32, spare: usize, other: u32) -> bool {
    has_more(core, spare) && next_for(&ready(core).lock(), spare, other).is_some()
}

/// Takes that thread out.
pub(super) fn take_for(core: u32, spare: usize, other: u32) -> Option<Box<Thread>> {
    if !has_more(core, spare) {
        return None;
    }
    change_ready(core, |queue| {
        let place = next_for(queue, spare, other)?;
        queue.remove(place)
    })
}

/// Whether more than `spare` threads are ready at a core, as far as that can be seen from outside.
fn has_more(core: u32, spare: usize) -> bool {
    ready_count(core).load(Ordering::SeqCst) as usize > spare
}

/// The priority of the thread that is to run next on this core, if another is ready.
fn next_priority() -> Option<Priority> {
    if !has_more(number(), 0) {
        return None;
    }
    let queue = ready(number()).lock();
    next(&queue).map(|(_, priority)| priority)
}

/// Takes out the thread that is to run next on this core.
fn take_next() -> Option<Box<Thread>> {
    if !has_more(number(), 0) {
        return None;
    }
    change_ready(number(), |queue| {
        let (place, _) = next(queue)?;
        queue.remove(place)
    })
}

/// What a core does from its start to its end.
pub(crate) fn run() -> ! {
    loop {
        look_around();
        match take_next().or_else(balance::fetch) {
            Some(thread) => {
                balance::begin_to_run();
                run_thread(thread);
                balance::look();
            }
            None => idle(),
        }
    }
}

/// Looks for all that an interrupt may be about.
fn look_around() {
    heed_interrupts();
    look_at_the_base();
    keep_time();
    collect();
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
fn collect() {
    let ended = take_answers();
    ended.into_iter().for_each(end);
}

/// The same; those who have nobody to ask are answered. Ending one may take longer than others may be
/// kept from those that wait.
fn take_answers() -> Vec<Box<Thread>> {
    let mut waiting = waiting().lock();
    let (mut at, mut ended) = (0, Vec::new());
    while at < waiting.len() {
        match waiting[at].poll() {
            Ok(None) => {
                waiting[at].heed_signals();
                at += 1;
            }
            Ok(Some((result, _))) => {
                let mut thread = waiting.swap_remove(at);
                thread.desk.set_doorbell(0);
                thread.take_result(result);
                send(thread);
            }
            Err(Gone) => ended.push(waiting.swap_remove(at)),
        }
    }
    ended
}

/// Answers what the base asks about those that wait here, while a thread of this core waits for it
/// without leaving the core.
pub(crate) fn answer_questions() {
    if let Some(mut waiting) = waiting().try_lock() {
        waiting
            .iter_mut()
            .for_each(|thread| thread.answer_question());
    }
}

/// What this core has to do besides the thread of which it waits for an answer.
#[derive(Debug)]
pub(crate) struct Others {
    /// When it looks for that, in ns of the kernel's clock.
    look_ns: u64,
}

impl Others {
    /// Of a core that begins to wait.
    pub(crate) fn now() -> Self {
        let look_ns = clock::now_ns() + PATIENCE_NS;
        Self { look_ns }
    }

    /// Makes those ready that wait here for what has come, so that other cores can fetch them, and has
    /// those look at what the base wants. Once in a while.
    pub(crate) fn leave_to_other_cores(&mut self) {
        let now_ns = clock::now_ns();
        if now_ns < self.look_ns {
            return;
        }
        self.look_ns = now_ns + PATIENCE_NS;
        keep_time();
        take_results();
        if RUNG.load(Ordering::Acquire) {
            super::wake_all();
        }
    }
}

/// Makes those ready whose calls the base has answered. Whoever waits on this core may have the memory of
/// their program, or the list itself: nothing else is done about them.
fn take_results() {
    let Some(mut waiting) = waiting().try_lock() else {
        return;
    };
    let mut at = 0;
    while at < waiting.len() {
        match waiting[at].take_answer() {
            true => {
                let mut thread = waiting.swap_remove(at);
                thread.desk.set_doorbell(0);
                send(thread);
            }
            false => {
                waiting[at].heed_signals();
                at += 1;
            }
        }
    }
}

/// Whether one of those that wait here waits for memory that other programs give back: then nobody tells
/// this core when it is to look again.
fn is_starving() -> bool {
    waiting().lock().iter().any(|thread| thread.is_starving())
}

/// Tells the base how those that wait here are woken; 0: that the core is awake.
fn set_doorbells(doorbell: u64) {
    for thread in waiting().lock().iter_mut() {
        thread.desk.set_doorbell(doorbell);
    }
}

/// The end of a thread, which is in no queue.
pub(crate) fn end(mut thread: Box<Thread>) {
    thread.give_up_locks();
    thread.process.note_last_moment(&thread);
    balance::leaves(&thread);
    drop(thread);
    process::tend();
}

/// While a thread runs nobody looks for the answers of others: the base is to ring.
fn ask_to_be_rung() {
    set_doorbells(doorbell());
    // Those that were there already.
    collect();
}

/// Nobody is ready: looks for answers for a while, then sleeps until an interrupt.
fn idle() {
    let own = number();
    let is_quiet = || {
        collect();
        let is_nobody_ready = !has_more(own, 0) && !is_starving();
        is_nobody_ready && !RUNG.load(Ordering::Acquire) && !is_interrupted()
    };
    if !balance::become_idle() {
        return balance::look();
    }
    let patience_end = clock::now_ns() + PATIENCE_NS;
    while !waiting().lock().is_empty() && clock::now_ns() < patience_end {
        if !is_quiet() {
            return balance::look();
        }
        cpu::take_interrupts();
    }
    set_doorbells(doorbell());
    if is_quiet() {
        sleep();
    }
    set_doorbells(0);
    balance::look();
}

/// The time at which this core has to look whom to wake.
fn next_deadline() -> Option<u64> {
    process::next_deadline(number())
}

/// Wakes those whose time has come.
fn keep_time() {
    let now_ns = clock::now_ns();
    if next_deadline().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
        process::expire(number(), now_ns);
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
fn run_thread(mut thread: Box<Thread>) {
    use_space(thread.process.space().root());
    count(Counter::Switches);
    ask_to_be_rung();
    if thread.is_new {
        process::program(&mut thread);
    }
    thread.extended.load();
    if thread.will_be_another() {
        match calls::go_on_executing(thread) {
            Flow::On(same) => thread = same,
            _ => return,
        }
    }
    process::rseq::resume(&mut thread);
    loop {
        if thread.is_superseded() && !thread.process.is_ending() {
            thread.give_way();
            return end(thread);
        }
        if thread.process.is_stopped() {
            match process::park(thread) {
                Some(same) => thread = same,
                None => return,
            }
        }
        process::deliver(&mut thread);
        if thread.is_stopping {
            return wait(thread);
        }
        if !thread.context.can_run() && !thread.process.is_ending() {
            calls::no_such_place(&thread);
            continue;
        }
        if thread.process.is_ending() {
            thread.extended.save();
            return last_turn(thread);
        }
        if balance::moves(&mut thread) {
            thread.extended.save();
            return send(thread);
        }
        if gives_way(&thread) {
            thread.extended.save();
            return send_back(thread);
        }
        // The kernel itself takes interrupts while it waits for another core: they may be about
        // threads that wait here, for whom nobody would look while this one computes.
        if is_interrupted() {
            look_around();
            continue;
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
                look_around();
                interrupted_in(thread)
            }
        };
        match flow {
            Flow::On(same) => thread = same,
            Flow::Yield(same) if keeps_core(&same, true) => thread = same,
            Flow::Yield(mut same) => {
                same.extended.save();
                return send(same);
            }
            Flow::Interrupted(mut same) => {
                same.extended.save();
                return send_back(same);
            }
            Flow::Wait(same) => return wait(same),
            Flow::Away => return,
            Flow::End(same) => return end(same),
        }
    }
}

/// Has a thread wait for the base.
fn wait(mut thread: Box<Thread>) {
    thread.extended.save();
    waiting().lock().push(thread);
}

/// Whether a thread goes on though others are ready; `asks`: it wants them to run.
fn keeps_core(thread: &Thread, asks: bool) -> bool {
    let priority = thread.notice.priority();
    next_priority().is_none_or(|next| priority.keeps_core(&next, asks))
}

/// Whether a more urgent thread is ready.
fn gives_way(thread: &Thread) -> bool {
    let priority = thread.notice.priority();
    next_priority().is_some_and(|next| next.is_above(&priority))
}

/// What becomes of a thread that an interrupt came to.
fn interrupted_in(thread: Box<Thread>) -> Flow {
    let priority = thread.notice.priority();
    match next_priority() {
        Some(next) if next.is_above(&priority) => Flow::Interrupted(thread),
        Some(next) if !priority.keeps_core(&next, false) => Flow::Yield(thread),
        _ => Flow::On(thread),
    }
}

/// The end of a thread that was not waiting.
fn last_turn(mut thread: Box<Thread>) {
    match thread.dumping {
        // The others may need this core for their end.
        Some(_) if !thread.is_alone() => return send(thread),
        Some(signal) => process::dump(&mut thread, signal),
        None => {}
    }
    end(thread);
}

/// Enters the program; with a timer, if somebody else wants the core, or waits for a time.
fn run_once(thread: &mut Thread) -> Trap {
    let priority = thread.notice.priority();
    let slice_ns = (!keeps_core(thread, false)).then(|| priority.slice_ns());
    let look_ns = is_starving().then_some(MEMORY_PERIOD_NS);
    let slice = slice_ns.into_iter().chain(look_ns).min();
    let slice = slice.map(|slice_ns| clock::now_ns() + slice_ns);
    let until_ns = slice.into_iter().chain(next_deadline()).min();
    set_timer(until_ns);
    count(Counter::Entries);
    let is_first_core = number() == 0;
    if is_first_core {
        log::tell_in_program(true);
    }
    let began = clock::stamp();
    #[cfg(target_os = "none")]
    let trap = thread.context.run();
    #[cfg(not(target_os = "none"))]
    let trap = thread.context.trap();
    if is_first_core {
        log::tell_in_program(false);
    }
    thread.has_run(clock::stamp().wrapping_sub(began));
    stop_timer(until_ns);
    trap
}

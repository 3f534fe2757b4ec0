//! The loop of a core: choose a thread, run it until it traps, handle the trap.
//!
//! No core waits for the base: while a thread does, the core runs others. If none is ready, it
//! polls for the base's reply for a while, as most replies arrive within microseconds. Then it
//! sleeps, and the base rings its doorbell.

use alloc::boxed::Box;

use insula_bare::cpu;
#[cfg(target_os = "none")]
use insula_bare::ports;
use insula_bare::user::Trap;

use crate::base::area::area;
use crate::base::counters::{Counter, count};
use crate::base::{core_words, polling};
use crate::hw::cores::{ack_interrupts, doorbell, is_interrupted, number};
use crate::hw::interrupts::{handle_interrupt, is_doorbell_pending, take_doorbell};
use crate::hw::tlb::switch_page_table;
use crate::hw::{clock, log, shared_core};
use crate::sched::{stealing, waiting};
use crate::syscall::{ask, dispatch, exception, exec, proxy_mask, signal_delivery};
use crate::task::address_space::base_access::{MissingPage, Retry};
use crate::task::flow::{Flow, Handler};
use crate::task::reap::{self, end_thread};
use crate::task::run_queue::{enqueue, enqueue_front, has_more, next_priority, take_next};
use crate::task::thread::Thread;
use crate::task::{
    blocked, dump, irq, leaving, loader, placement, proxy_signals, rseq, service, stop, wake_up_new,
};

/// Main loop of a core.
pub(crate) fn run() -> ! {
    loop {
        service_pending();
        match take_next().or_else(stealing::steal) {
            Some(thread) => {
                stealing::set_running();
                run_thread(thread);
                polling::arm_doorbell(0);
                stealing::set_searching();
            }
            None => {
                core_words::begin_idle();
                idle();
                core_words::end_idle();
            }
        }
    }
}

/// Services everything that an interrupt may have announced.
fn service_pending() {
    shared_core::leave_if_interrupted();
    ack_interrupts();
    service_base();
    irq::deliver();
    blocked::expire(number());
    waiting::poll_waiting();
}

fn service_base() {
    if take_doorbell()
        && let Some(area) = area()
    {
        service::service_pending(area);
    }
    reap::reap();
}

/// While a thread runs, the core polls for no replies: the base is to ring.
fn arm_doorbells() {
    polling::arm_doorbell(doorbell());
    // Replies that have arrived already.
    waiting::poll_waiting();
}

/// Without a ready thread: polls for replies for a while, then sleeps until an interrupt.
fn idle() {
    let own = number();
    let is_quiet = || {
        waiting::poll_waiting();
        let is_none_ready = !has_more(own, 0);
        is_none_ready && !is_doorbell_pending() && !is_interrupted()
    };
    if !stealing::set_idle() {
        return stealing::set_searching();
    }
    let mut began = clock::stamp();
    while clock::stamp().wrapping_sub(began) < waiting::polling_time() {
        if !is_quiet() {
            return stealing::set_searching();
        }
        // A handler may have made its next call.
        if polling::take_replies() {
            began = clock::stamp();
        }
        cpu::poll_interrupts();
        cpu::relax();
    }
    polling::arm_doorbell(doorbell());
    if is_quiet() {
        sleep();
    }
    polling::arm_doorbell(0);
    stealing::set_searching();
}

/// Returns the time at which this core has to look after its threads, in ns since boot: the
/// earliest timeout, or when what waits here is polled again.
fn next_deadline() -> Option<u64> {
    let timeout_ns = blocked::next_deadline(number());
    timeout_ns.into_iter().chain(polling::next_poll_ns()).min()
}

/// Arms the timer of this core, if a time is given; [`stop_timer`] disarms it.
fn set_timer(at_ns: Option<u64>) {
    if let Some(at_ns) = at_ns {
        shared_core::set_timer(clock::tsc_at(at_ns));
    }
}

fn stop_timer(at_ns: Option<u64>) {
    if at_ns.is_some() {
        shared_core::stop_timer();
    }
}

/// Halts until an interrupt or the next timeout.
fn sleep() {
    let deadline_ns = next_deadline();
    if let Some(at_ns) = deadline_ns {
        shared_core::set_timer_to_wait(clock::tsc_at(at_ns));
    }
    shared_core::wait_for_interrupt();
    stop_timer(deadline_ns);
}

/// Runs a thread until it blocks, exits, or its time slice ends.
fn run_thread(mut thread: Box<Thread>) {
    count(Counter::Switches);
    arm_doorbells();
    load(&mut thread);
    rseq::resume(&mut thread);
    let turn_ns = clock::now_ns();
    loop {
        match run_once(thread, turn_ns) {
            Flow::Continue(same) => thread = same,
            Flow::Yield(same) if keeps_core(&same, true) => {
                // It waits for what another core does.
                cpu::relax();
                thread = same;
            }
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
                if !waiting::spin_for_reply(&mut same) {
                    same.extended.save();
                    return waiting::wait_for_reply(same);
                }
                thread = same;
            }
            Flow::Switch(mut other) => {
                count(Counter::Switches);
                load(&mut other);
                rseq::resume(&mut other);
                thread = other;
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
    polling::arm_doorbell(0);
    match waiting::run_handler(handler)? {
        Flow::Continue(mut thread) => {
            arm_doorbells();
            // The handler may have changed both.
            load(&mut thread);
            Some(thread)
        }
        flow => {
            waiting::dispatch(flow);
            None
        }
    }
}

/// Does what is due before a thread returns to its program, or else runs the program until it
/// enters the kernel. `turn_ns`: when this core took it from its queue, or the thread in whose turn it
/// runs.
fn run_once(thread: Box<Thread>, turn_ns: u64) -> Flow {
    let mut thread = match before_program(thread) {
        Flow::Continue(thread) => thread,
        flow => return flow,
    };
    if !thread.context.can_run() {
        exception::force_segv(&thread);
        return Flow::Continue(thread);
    }
    // The kernel itself takes interrupts while it waits for another core: service what they
    // announced before the thread runs on.
    if is_interrupted() {
        service_pending();
        return Flow::Continue(thread);
    }
    if is_turn_over(&thread, turn_ns) {
        return Flow::Yield(thread);
    }
    match enter_program(&mut thread, turn_ns) {
        None => Flow::Continue(thread),
        Some(Trap::Syscall) => dispatch::execute(thread),
        Some(Trap::Exception {
            vector,
            error,
            address,
        }) => exception::exception(thread, vector, error, address),
        Some(Trap::Interrupt(vector)) => {
            handle_interrupt(vector);
            service_pending();
            flow_after_interrupt(thread)
        }
    }
}

/// Decides whether a thread may return to its program; does what it has to do before.
fn before_program(mut thread: Box<Thread>) -> Flow {
    if thread.needs_load {
        return loader::load_program(thread);
    }
    let is_exiting = thread.process.is_exiting();
    if thread.set_child_tid != 0 && !is_exiting {
        return wake_up_new::store_child_tid(thread);
    }
    if let Some((missing, retry)) = thread.missing_page.take()
        && !is_exiting
    {
        return fault_in(thread, missing, retry);
    }
    if thread.has_reply() && !is_exiting {
        return ask::go_on(thread);
    }
    if core::mem::take(&mut thread.repeats_call) && !is_exiting {
        return dispatch::execute(thread);
    }
    if thread.has_pending_exec() && !is_exiting {
        return Flow::handler(thread, exec::complete_exec);
    }
    if thread.is_killed_by_exec() && !is_exiting {
        return thread.exit_for_exec();
    }
    if thread.process.is_stopped() {
        match stop::wait_while_stopped(thread) {
            Some(same) => thread = same,
            None => return Flow::Blocked,
        }
    }
    if thread.has_uncaught_signal() {
        return proxy_signals::restore_proxy_handler(thread);
    }
    signal_delivery::deliver_signals(&mut thread);
    // Before the program goes on: it would find its call interrupted without its handler.
    if let Some((missing, retry)) = thread.missing_page.take()
        && !thread.process.is_exiting()
    {
        return fault_in(thread, missing, retry);
    }
    if let Some(signal) = thread.stopping {
        return proxy_signals::stop(thread, signal);
    }
    if thread.process.is_exiting() {
        thread.extended.save();
        return exit_running(thread);
    }
    if proxy_mask::has_signals_for_fds(&thread) {
        return Flow::handler(thread, async |mut thread| {
            proxy_mask::pass_to_fds(&mut thread).await;
            Flow::Continue(thread)
        });
    }
    if thread.process.is_leaving() {
        return wait_to_leave(thread);
    }
    choose_core(thread)
}

/// Has a thread of a program wait that leaves the node.
fn wait_to_leave(mut thread: Box<Thread>) -> Flow {
    // Its sequence is aborted, as it leaves the core.
    rseq::resume(&mut thread);
    match thread.missing_page.take() {
        Some((missing, retry)) => fault_in(thread, missing, retry),
        None => leaving::wait(thread),
    }
}

/// Faults in a page of a base mapping before a thread goes on, and does what needed it.
fn fault_in(thread: Box<Thread>, missing: MissingPage, retry: Retry) -> Flow {
    match retry {
        Retry::Call => dispatch::retry(thread, missing),
        Retry::Sequence => rseq::complete(thread, missing),
        Retry::Signals => signal_delivery::fault_in(thread, missing),
    }
}

/// Has a thread run on another core, or later, if its affinity or a higher priority demands that.
fn choose_core(mut thread: Box<Thread>) -> Flow {
    if placement::migrate(&mut thread) {
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

/// Whether others that are ready have their turn now. A timer for a time that has passed would not do: on
/// a shared core it has the base have the core, and then this thread go on.
fn is_turn_over(thread: &Thread, turn_ns: u64) -> bool {
    let slice_ns = thread.handle.priority().slice_ns();
    !keeps_core(thread, false) && clock::now_ns() >= turn_ns.saturating_add(slice_ns)
}

/// Ends a thread whose process exits, and whose extended state is saved.
fn exit_running(thread: Box<Thread>) -> Flow {
    match thread.dumping_core {
        // The other threads may need this core to exit.
        Some(_) if !thread.is_alone() => {
            enqueue(thread);
            Flow::Blocked
        }
        Some(signal) => dump::dump(thread, signal),
        None => Flow::Exit(thread),
    }
}

/// Enters the program, with the timer armed if another thread is ready or a timeout is pending.
/// Returns why it has left, unless that is done.
fn enter_program(thread: &mut Thread, turn_ns: u64) -> Option<Trap> {
    let priority = thread.handle.priority();
    let slice_ns = (!keeps_core(thread, false)).then(|| priority.slice_ns());
    let slice_end_ns = slice_ns.map(|slice_ns| turn_ns.saturating_add(slice_ns));
    let until_ns = slice_end_ns.into_iter().chain(next_deadline()).min();
    set_timer(until_ns);
    // The base may have had the core meanwhile, to notice the time.
    if shared_core::is_shared() && is_interrupted() {
        stop_timer(until_ns);
        return None;
    }
    let is_first_core = number() == 0;
    if is_first_core {
        log::set_in_program(true);
    }
    core_words::enter_program();
    let start = clock::stamp();
    let trap = run_program(thread);
    core_words::leave_program();
    if is_first_core {
        log::set_in_program(false);
    }
    thread.account_run_time(clock::stamp().wrapping_sub(start));
    stop_timer(until_ns);
    trap
}

/// Runs the program, and executes those of its calls that never wait in place: the core leaves the
/// program for the base and the timer only when it does anything else. Returns why it left; `None` if
/// the last call is executed, but something is due before the thread goes on.
///
/// What others change meanwhile is announced by an interrupt, which comes as soon as the program
/// runs again: so does the base's request to flush the TLB, as this core counts as running the
/// program.
fn run_program(thread: &mut Thread) -> Option<Trap> {
    #[cfg(target_os = "none")]
    ports::permit(thread.ports.as_deref());
    loop {
        count(Counter::Entries);
        #[cfg(target_os = "none")]
        let trap = thread.context.run();
        #[cfg(not(target_os = "none"))]
        let trap = thread.context.trap();
        if trap != Trap::Syscall || !dispatch::execute_immediate(thread) {
            return Some(trap);
        }
        if !can_resume(thread) {
            return None;
        }
    }
}

/// Whether a thread can return to its program at once after a call that was executed in place.
fn can_resume(thread: &Thread) -> bool {
    let is_any_due = thread.handle.is_signal_pending()
        || thread.missing_page.is_some()
        || thread.process.signals_of_fds() != 0
        || is_interrupted();
    !is_any_due && thread.context.can_run()
}

//! Signal delivery, before a thread returns to its program.

use alloc::boxed::Box;

use crate::info;
use crate::model::errno::Errno;
use crate::model::signals::Disposition;
use crate::model::signals::action::Action;
use crate::model::signals::frame::{self, AltStack, InterruptedThread};
use crate::model::signals::info::Info;
use crate::model::signals::number;
use crate::model::signals::set::{Set, UNBLOCKABLE, bit};
use crate::syscall::table;
use crate::task::address_space::base_access::{self, MissingPage, Retry};
use crate::task::flow::Flow;
use crate::task::thread::{InterruptedCall, Thread};
use crate::task::{rseq, stop};

/// An address at which no program has memory.
const NOWHERE: u64 = 1 << 63;

/// Handles the pending signals of a thread. Afterwards the thread may have exited, with its
/// program, or be stopping it; or it needs a page of a base mapping, and [`fault_in`] is due.
pub(crate) fn deliver_signals(thread: &mut Thread) {
    if let Some((info, action)) = thread.undelivered.take() {
        handle(thread, info, action);
        if thread.undelivered.is_some() {
            return;
        }
        unblock(thread);
    }
    let syscall = thread.interruptible_call.take();
    if syscall.is_some() {
        thread.process.take_base_signals();
    }
    if syscall.is_none() && !thread.handle.is_signal_pending() {
        return;
    }
    if !finish_sigwait(thread, syscall) {
        thread.interruptible_call = syscall;
        return;
    }
    let interrupted = syscall
        .and_then(|number| interrupted_call(thread, number))
        .or_else(|| reinterrupt(thread));
    let interrupted = handle_pending(thread, interrupted);
    unblock(thread);
    // The signal that interrupted the call went to another thread, or was ignored.
    if let Some(call) = interrupted.filter(|&call| is_restarted(call, false, thread)) {
        restart_syscall(thread, call.number);
        thread.restarted_call = Some(call);
    }
}

/// Ends what a call has blocked while it waited, unless a handler's frame is still to hold that.
fn unblock(thread: &mut Thread) {
    if thread.undelivered.is_none()
        && let Some(blocked) = thread.saved_blocked.take()
    {
        thread.process.signals().block(thread.id, blocked);
    }
}

/// Returns the call that a signal has interrupted. One that had not begun is made after the signal,
/// as if that had come before; but not if the call itself unblocks signals while it waits.
fn interrupted_call(thread: &mut Thread, number: u64) -> Option<InterruptedCall> {
    let is_unbegun = core::mem::take(&mut thread.is_call_unbegun);
    if thread.context.registers.rax != Errno::EINTR.as_result() {
        return None;
    }
    let has_begun = !is_unbegun || thread.saved_blocked.is_some();
    if !has_begun {
        thread.unbegun_call = Some(thread.context.registers.rip);
    }
    Some(InterruptedCall { number, has_begun })
}

/// Notes the page of a base mapping for which the last access failed.
fn note_missing_page(thread: &mut Thread) {
    thread.missing_page = base_access::take_missing().map(|page| (page, Retry::Signals));
}

/// Faults in a page that the delivery of a signal needs. If that fails, writing there fails, too.
pub(crate) fn fault_in(thread: Box<Thread>, missing: MissingPage) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        if thread
            .fault_in(missing.address, missing.access)
            .await
            .is_err()
        {
            if let Some((info, _)) = thread.undelivered.take() {
                frame_fault(&mut thread, info.signal);
            }
            if let Some((_, to)) = &mut thread.sigwait {
                *to = NOWHERE;
            }
        }
        Flow::Continue(thread)
    })
}

/// Handles one pending signal after the other. Returns the interrupted call, unless a handler will
/// run.
fn handle_pending(
    thread: &mut Thread,
    mut interrupted: Option<InterruptedCall>,
) -> Option<InterruptedCall> {
    while thread.handle.is_signal_pending()
        && !thread.process.is_exiting()
        && thread.stopping.is_none()
        && thread.undelivered.is_none()
    {
        let disposition = thread.process.signals().next(thread.id);
        match disposition {
            None => break,
            Some(Disposition::Terminate {
                signal,
                dumps_core: true,
            }) => dump_core_and_exit(thread, signal),
            Some(Disposition::Terminate { signal, .. }) => thread.exit_process(signal.into()),
            Some(Disposition::Stop { signal }) => stop::begin_stop(thread, signal),
            Some(Disposition::Handle(info, action)) => {
                if let Some(call) = interrupted.take()
                    && (!call.has_begun || action.flags & Action::RESTART != 0)
                    && is_restarted(call, true, thread)
                {
                    restart_syscall(thread, call.number);
                }
                handle(thread, info, action);
            }
        }
    }
    interrupted
}

/// Whether a call is restarted after a signal, for which a handler with SA_RESTART runs or none.
fn is_restarted(call: InterruptedCall, has_handler: bool, thread: &Thread) -> bool {
    let arguments = thread.syscall_arguments();
    let row = table::find(call.number);
    !call.has_begun || row.is_none_or(|row| row.is_restarted(has_handler, &arguments))
}

/// Size of the SYSCALL instruction.
const SYSCALL_SIZE: u64 = 2;

/// Reverts the restart of a call when another signal arrives first: the signal finds the call
/// interrupted. Returns the call.
fn reinterrupt(thread: &mut Thread) -> Option<InterruptedCall> {
    let call = thread.restarted_call.take()?;
    let registers = &mut thread.context.registers;
    registers.rip = registers.rip.wrapping_add(SYSCALL_SIZE);
    registers.rax = Errno::EINTR.as_result();
    Some(call)
}

/// Sets the registers so that the thread repeats its last call.
fn restart_syscall(thread: &mut Thread, number: u64) {
    let registers = &mut thread.context.registers;
    registers.rip = registers.rip.wrapping_sub(SYSCALL_SIZE);
    registers.rax = number;
}

/// Sets the result of sigtimedwait(2): a signal or a timeout. Returns whether it has; else the page for
/// the signal's information is missing.
fn finish_sigwait(thread: &mut Thread, syscall: Option<u64>) -> bool {
    let Some((awaited, to)) = thread.sigwait else {
        return true;
    };
    let end = to.saturating_add(Info::SIZE as u64);
    if to != 0 && thread.process.space().can_write(to, end) == Err(Errno::EBASEPAGE) {
        note_missing_page(thread);
        return false;
    }
    thread.sigwait = None;
    let info = {
        let mut signals = thread.process.signals();
        signals.await_signals(thread.id, 0);
        signals.take(thread.id, awaited)
    };
    let result = &mut thread.context.registers.rax;
    match info {
        Some(info) => {
            *result = info.signal.into();
            if to != 0 && thread.process.space().write(to, &info.to_bytes()).is_err() {
                *result = Errno::EFAULT.as_result();
            }
        }
        None if syscall.is_some() && *result == Errno::ETIMEDOUT.as_result() => {
            *result = Errno::EAGAIN.as_result();
        }
        None => {}
    }
    true
}

fn dump_core_and_exit(thread: &mut Thread, signal: u32) {
    let [vector, error, address] = thread.last_exception;
    info!(
        "process {}: signal {signal} at {:#x}; last exception {vector}, error {error:#x}, address {address:#x}",
        thread.id, thread.context.registers.rip
    );
    thread.begin_core_dump(signal);
}

/// Sets up a signal handler's frame and registers; if a page is missing for that, it is undelivered.
fn handle(thread: &mut Thread, info: Info, action: Action) {
    // The frame holds where the program goes on: that must be known by then.
    rseq::resume(thread);
    if thread.missing_page.is_some() {
        thread.undelivered = Some((info, action));
        return;
    }
    let blocked_now = thread.process.signals().blocked(thread.id);
    let blocked = thread.saved_blocked.unwrap_or(blocked_now);
    thread.extended.save();
    let interrupted = InterruptedThread {
        registers: &thread.context.registers,
        blocked,
        alt_stack: thread.alt_stack,
        extended: thread.extended.bytes(),
        enabled: insula_bare::ExtendedState::enabled(),
        fault: thread.last_exception,
    };
    let frame = frame::build(&interrupted, &info, &action).ok_or(Errno::EFAULT);
    let written = frame.and_then(|frame| {
        let mut space = thread.process.space();
        space.write(frame.address, &frame.bytes)?;
        Ok(frame)
    });
    match written {
        Ok(frame) => enter_handler(thread, frame.address, blocked, &info, &action),
        Err(Errno::EBASEPAGE) => {
            note_missing_page(thread);
            thread.undelivered = Some((info, action));
        }
        Err(_) => frame_fault(thread, info.signal),
    }
}

/// Sets the registers, the signal mask and the alternate stack with which a handler starts.
fn enter_handler(thread: &mut Thread, frame: u64, blocked: Set, info: &Info, action: &Action) {
    thread.saved_blocked = None;
    let registers = &mut thread.context.registers;
    *registers = frame::handler_registers(registers, frame, info, action);
    thread.extended.reset();
    thread.extended.load();
    if thread.alt_stack.flags & AltStack::AUTO_DISARM != 0 {
        thread.alt_stack = AltStack::default();
    }
    let own = match action.flags & Action::NO_DEFER {
        0 => bit(info.signal),
        _ => 0,
    };
    let mask = blocked | action.mask | own;
    thread
        .process
        .signals()
        .block(thread.id, mask & !UNBLOCKABLE);
}

/// Sends SIGSEGV if a signal frame cannot be written.
fn frame_fault(thread: &mut Thread, signal: u32) {
    if signal == number::SEGV {
        return thread.exit_process(signal.into());
    }
    let fault = Info::fault(number::SEGV, Info::KERNEL, 0);
    thread.process.signals().force(thread.id, fault);
}

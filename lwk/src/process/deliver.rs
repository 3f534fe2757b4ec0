//! Dealing with signals, just before a thread goes on.

use super::errno::Errno;
use super::signals::frame::{self, Alternate, Interrupted};
use super::signals::{Action, Deed, Info, UNBLOCKABLE, bit, number};
use super::{Thread, rseq, stop};
use crate::calls::{self, number as call};
use crate::info;

/// Has a thread deal with what has come for it. It, and with it the program, may have ended
/// afterwards; or have been stopped, and waits for the base.
pub(crate) fn deliver(thread: &mut Thread) {
    stop::catch_again(thread);
    let made = thread.calling.take();
    if made.is_some() {
        thread.process.take_sent();
    }
    if made.is_none() && !thread.notice.is_told() {
        return;
    }
    take_awaited(thread, made);
    let is_broken_off = |_: &u64| thread.context.registers.rax == Errno::EINTR.as_result();
    let mut broken_off = made
        .filter(is_broken_off)
        .or_else(|| break_off_again(thread));
    while thread.notice.is_told() && !thread.process.is_ending() && !thread.is_stopping {
        let deed = thread.process.signals().next(thread.id);
        match deed {
            None => break,
            Some(Deed::End {
                signal,
                dumps: true,
            }) => end_with_core(thread, signal),
            Some(Deed::End { signal, .. }) => thread.exit_process(signal.into()),
            Some(Deed::Stop { signal }) => stop::stop(thread, signal),
            Some(Deed::Handle(info, action)) => {
                if let Some(number) = broken_off.take()
                    && action.flags & Action::RESTART != 0
                    && calls::can_be_made_anew(number, thread)
                {
                    make_anew(thread, number);
                }
                handle(thread, &info, &action);
            }
        }
    }
    if let Some(blocked) = thread.blocked_before.take() {
        thread.process.signals().block(thread.id, blocked);
    }
    // What broke it off was not for this thread, or came to nothing.
    if let Some(number) = broken_off.filter(|&number| number != call::CLOSE) {
        make_anew(thread, number);
        thread.rewound = Some(number);
    }
}

/// Bytes of SYSCALL.
const SYSCALL_SIZE: u64 = 2;

/// A thread that was about to make its call again has been told of another signal: that finds the call
/// as if it had never been over. Which one it was.
fn break_off_again(thread: &mut Thread) -> Option<u64> {
    let number = thread.rewound.take()?;
    let registers = &mut thread.context.registers;
    registers.rip = registers.rip.wrapping_add(SYSCALL_SIZE);
    registers.rax = Errno::EINTR.as_result();
    Some(number)
}

/// Lets a thread make the call again that it has just made.
fn make_anew(thread: &mut Thread, number: u64) {
    let registers = &mut thread.context.registers;
    registers.rip = registers.rip.wrapping_sub(SYSCALL_SIZE);
    registers.rax = number;
}

/// The end of sigtimedwait(2): a signal, or no time left.
fn take_awaited(thread: &mut Thread, made: Option<u64>) {
    let Some((awaited, to)) = thread.awaiting.take() else {
        return;
    };
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
        None if made.is_some() && *result == Errno::ETIMEDOUT.as_result() => {
            *result = Errno::EAGAIN.as_result();
        }
        None => {}
    }
}

fn end_with_core(thread: &mut Thread, signal: u32) {
    let [vector, error, address] = thread.fault;
    info!(
        "process {}: signal {signal} at {:#x}; last exception {vector}, error {error:#x}, address {address:#x}",
        thread.id, thread.context.registers.rip
    );
    thread.end_with_core(signal);
}

/// Has a thread go on in a handler.
fn handle(thread: &mut Thread, info: &Info, action: &Action) {
    rseq::resume(thread);
    let blocked_now = thread.process.signals().blocked(thread.id);
    let blocked = thread.blocked_before.take().unwrap_or(blocked_now);
    thread.extended.save();
    let interrupted = Interrupted {
        registers: &thread.context.registers,
        blocked,
        alternate: thread.alternate,
        extended: thread.extended.bytes(),
        enabled: insula_bare::ExtendedState::enabled(),
        fault: thread.fault,
    };
    let frame = frame::build(&interrupted, info, action);
    let written = frame.as_ref().is_some_and(|frame| {
        let mut space = thread.process.space();
        space.write(frame.address, &frame.bytes).is_ok()
    });
    let (Some(frame), true) = (frame, written) else {
        return no_frame(thread, info.signal);
    };
    let registers = &mut thread.context.registers;
    *registers = frame::begin(registers, frame.address, info, action);
    thread.extended.reset();
    thread.extended.load();
    if thread.alternate.flags & Alternate::AUTO_DISARM != 0 {
        thread.alternate = Alternate::default();
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

/// A handler whose stack cannot be written to is a fault in itself.
fn no_frame(thread: &mut Thread, signal: u32) {
    if signal == number::SEGV {
        return thread.exit_process(signal.into());
    }
    let fault = Info::fault(number::SEGV, Info::KERNEL, 0);
    thread.process.signals().force(thread.id, fault);
}

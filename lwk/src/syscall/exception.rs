//! Exceptions of programs.

use alloc::boxed::Box;

use insula_bare::trap::PAGE_FAULT;

use crate::base::counters::{self, Counter};
use crate::info;
use crate::model::errno::Errno;
use crate::model::signals::info::Info;
use crate::model::signals::number as signal_number;
use crate::model::vma::{PAGE, Protection};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Wait status of a program terminated by SIGSEGV.
pub(super) const SEGMENTATION_FAULT: u64 = 11;

/// Handles an exception of a program.
#[must_use]
pub fn exception(mut thread: Box<Thread>, vector: u8, error: u64, address: u64) -> Flow {
    let mut info = signal_for_exception(vector);
    if u64::from(vector) == PAGE_FAULT {
        counters::count(Counter::Faults);
        let access = match error {
            error if error & 1 << 4 != 0 => Protection::EXECUTE,
            error if error & 1 << 1 != 0 => Protection::WRITE,
            _ => Protection::READ,
        };
        let resolved = thread.process.space().fault(address, access);
        match resolved {
            Ok(()) => {
                thread.memory_wait_since_ns = None;
                return Flow::Continue(thread);
            }
            Err(Errno::ENOMEM) => return handle_out_of_memory(thread),
            // Another thread is unmapping the page, or forks: retry.
            Err(Errno::EAGAIN) => return Flow::Yield(thread),
            Err(Errno::EBASEPAGE) => {
                return fault_in(thread, access, [vector.into(), error, address]);
            }
            Err(error) => info = fault_info(&thread, address, error),
        }
    } else {
        info.fields[0] = match info.code {
            Info::KERNEL => 0,
            _ => thread.context.registers.rip,
        };
    }
    thread.last_exception = [vector.into(), error, address];
    thread.process.signals().force(thread.id, info);
    Flow::Continue(thread)
}

/// Faults in a page of a base mapping.
fn fault_in(thread: Box<Thread>, access: Protection, exception: [u64; 3]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let [_, _, address] = exception;
        match thread.fault_in(address, access).await {
            Ok(()) | Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(Errno::ENOMEM) => return wait_for_memory(thread),
            Err(error) => {
                let info = fault_info(&thread, address, error);
                thread.last_exception = exception;
                thread.process.signals().force(thread.id, info);
            }
        }
        Flow::Continue(thread)
    })
}

/// Sends SIGSEGV to a thread whose instruction pointer is not a user address.
pub fn force_segv(thread: &Thread) {
    let fault = Info::fault(SEGMENTATION_FAULT as u32, Info::KERNEL, 0);
    thread.process.signals().force(thread.id, fault);
}

/// Handles a page fault without free memory. As on Linux the program is killed, unless a program
/// that has exited, or I/O that pins freed pages, will release some.
fn handle_out_of_memory(thread: Box<Thread>) -> Flow {
    if thread.process.space().pinned_probe().is_none() {
        return wait_for_memory(thread);
    }
    Flow::handler(thread, |mut thread| async move {
        match thread.reclaim().await {
            true => Flow::Continue(thread),
            false => wait_for_memory(thread),
        }
    })
}

fn wait_for_memory(mut thread: Box<Thread>) -> Flow {
    const KILLED: u64 = 9;
    if thread.may_wait_for_memory() {
        return Flow::Yield(thread);
    }
    info!("process {} is killed: out of memory", thread.id);
    thread.exit_process(KILLED);
    Flow::Exit(thread)
}

/// Returns the signal for an access that has failed.
fn fault_info(thread: &Thread, address: u64, error: Errno) -> Info {
    /// `SEGV_MAPERR`, `SEGV_ACCERR` and `BUS_ADRERR`.
    const MAPERR: i32 = 1;
    const ACCERR: i32 = 2;
    const ADRERR: i32 = 2;
    if error == Errno::EIO {
        return Info::fault(signal_number::BUS, ADRERR, address);
    }
    let page = address & !(PAGE - 1);
    let is_there = thread.process.space().covers(page, page.saturating_add(1));
    let code = if is_there { ACCERR } else { MAPERR };
    Info::fault(SEGMENTATION_FAULT as u32, code, address)
}

/// Returns the signal and code that Linux sends for an exception.
fn signal_for_exception(vector: u8) -> Info {
    const ILL: u32 = 4;
    const TRAP: u32 = 5;
    const BUS: u32 = 7;
    const FPE: u32 = 8;
    // FPE_INTDIV, ILL_ILLOPN, BUS_ADRALN, TRAP_BRKPT; FPE_FLTINV stands for all of FPU and SSE.
    let (signal, code) = match vector {
        0 => (FPE, 1),
        1 => (TRAP, 1),
        3 => (TRAP, Info::KERNEL),
        6 => (ILL, 2),
        16 | 19 => (FPE, 7),
        17 => (BUS, 1),
        _ => (SEGMENTATION_FAULT as u32, Info::KERNEL),
    };
    Info::fault(signal, code, 0)
}

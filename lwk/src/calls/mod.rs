//! System calls and exceptions of programs.

mod memory;
pub mod table;
mod threads;
mod time;

use alloc::boxed::Box;

use insula_bare::trap::PAGE_FAULT;

use crate::info;
use crate::process::Thread;
use crate::process::areas::Rights;
use crate::process::errno::{Errno, as_result};
use table::{Kind, Local};

/// Numbers of calls that the kernel itself makes of the base.
pub mod number {
    /// `close`.
    pub const CLOSE: u64 = 3;
    /// `pread64`.
    pub const PREAD64: u64 = 17;
    /// `getuid`.
    pub const GETUID: u64 = 102;
    /// `getgid`.
    pub const GETGID: u64 = 104;
    /// `geteuid`.
    pub const GETEUID: u64 = 107;
    /// `getegid`.
    pub const GETEGID: u64 = 108;
    /// `openat`.
    pub const OPENAT: u64 = 257;
    /// `getrandom`.
    pub const GETRANDOM: u64 = 318;
}

/// Status of a program that was ended by SIGSEGV.
pub const SEGMENTATION_FAULT: u64 = 11;

/// What becomes of a thread after it came to the kernel.
#[derive(Debug)]
pub enum Flow {
    /// It goes on.
    On(Box<Thread>),
    /// It goes on when others have run.
    Yield(Box<Thread>),
    /// Its desk has been asked: it goes on with the answer.
    Wait(Box<Thread>),
    /// It has been put where somebody will find it.
    Away,
    /// It is no more.
    End(Box<Thread>),
}

/// Executes the system call that a thread makes.
#[must_use]
pub fn execute(mut thread: Box<Thread>) -> Flow {
    let registers = &thread.context.registers;
    let number = registers.rax;
    let arguments = [
        registers.rdi,
        registers.rsi,
        registers.rdx,
        registers.r10,
        registers.r8,
        registers.r9,
    ];
    match table::find(number).map(|call| call.kind) {
        Some(Kind::Local(local)) => execute_local(thread, local, arguments),
        Some(Kind::Delegated) if is_own_descriptor(&thread, number, arguments) => {
            answer(thread, Err(Errno::EBADF))
        }
        Some(Kind::Delegated) => {
            thread.desk.post(number, arguments);
            Flow::Wait(thread)
        }
        Some(Kind::Refused { errno, .. }) => answer(thread, Err(errno)),
        None => answer(thread, Err(Errno::ENOSYS)),
    }
}

/// The proxy's own descriptor is not the program's to close or to replace.
fn is_own_descriptor(thread: &Thread, number: u64, arguments: [u64; 6]) -> bool {
    const CLOSE: u64 = 3;
    const DUP2: u64 = 33;
    const DUP3: u64 = 292;
    let own = thread.process.pages().descriptor();
    match number {
        CLOSE => arguments[0] as u32 == own as u32,
        DUP2 | DUP3 => arguments[0] as u32 == own as u32 || arguments[1] as u32 == own as u32,
        _ => false,
    }
}

fn answer(mut thread: Box<Thread>, result: Result<u64, Errno>) -> Flow {
    thread.context.registers.rax = as_result(result);
    Flow::On(thread)
}

fn execute_local(mut thread: Box<Thread>, local: Local, arguments: [u64; 6]) -> Flow {
    let a = arguments;
    let result = match local {
        Local::Mmap => memory::mmap(&mut thread, a),
        Local::Munmap => memory::munmap(&mut thread, a[0], a[1]),
        Local::Mprotect => memory::mprotect(&mut thread, a[0], a[1], a[2]),
        Local::Madvise => memory::madvise(&mut thread, a[0], a[1], a[2]),
        Local::Msync => memory::msync(&mut thread, a[0], a[1]),
        Local::Brk => Ok(thread.with_space(|space, release| space.move_heap_end(a[0], release))),
        Local::Mlock => Ok(0),
        Local::ArchPrctl => threads::arch_prctl(&mut thread, a[0], a[1]),
        Local::Clone => threads::clone(&mut thread, a),
        Local::SetTidAddress => {
            thread.clear_at_end = a[0];
            Ok(thread.id)
        }
        Local::SetRobustList => {
            thread.robust = (a[0], a[1]);
            Ok(0)
        }
        Local::Getpid => Ok(thread.process.pages().pid()),
        Local::Gettid => Ok(thread.id),
        Local::Getcpu => threads::getcpu(&mut thread, a[0], a[1]),
        Local::SchedGetaffinity => threads::affinity(&mut thread, a[1], a[2]),
        Local::SchedSetaffinity => match threads::set_affinity(&mut thread, a[0], a[1], a[2]) {
            Ok(()) => {
                thread.context.registers.rax = 0;
                return Flow::Yield(thread);
            }
            Err(error) => Err(error),
        },
        Local::RtSigprocmask => threads::signal_mask(&mut thread, a),
        Local::ClockGettime => time::clock_gettime(&mut thread, a[0], a[1]),
        Local::Gettimeofday => time::gettimeofday(&mut thread, a[0]),
        Local::Time => time::time(&mut thread, a[0]),
        Local::SchedYield => {
            thread.context.registers.rax = 0;
            return Flow::Yield(thread);
        }
        Local::Futex => return threads::futex(thread, a),
        Local::Exit => {
            thread.exit((a[0] & 0xff) << 8);
            return Flow::End(thread);
        }
        Local::ExitGroup => {
            thread.exit_process((a[0] & 0xff) << 8);
            return Flow::End(thread);
        }
    };
    answer(thread, result)
}

/// Deals with an instruction that could not be executed.
#[must_use]
pub fn exception(mut thread: Box<Thread>, vector: u8, error: u64, address: u64) -> Flow {
    if u64::from(vector) == PAGE_FAULT {
        let access = match error {
            error if error & 1 << 4 != 0 => Rights::EXECUTE,
            error if error & 1 << 1 != 0 => Rights::WRITE,
            _ => Rights::READ,
        };
        if thread.process.space().fault(address, access).is_ok() {
            return Flow::On(thread);
        }
    }
    info!(
        "process {}: exception {vector} at {:#x}, error {error:#x}, address {address:#x}",
        thread.id, thread.context.registers.rip
    );
    thread.exit_process(signal_of(vector));
    Flow::End(thread)
}

/// The signal that Linux sends for an exception.
fn signal_of(vector: u8) -> u64 {
    const ILL: u64 = 4;
    const TRAP: u64 = 5;
    const BUS: u64 = 7;
    const FPE: u64 = 8;
    match vector {
        0 | 16 | 19 => FPE,
        1 | 3 => TRAP,
        6 => ILL,
        17 => BUS,
        _ => SEGMENTATION_FAULT,
    }
}

//! System calls and exceptions of programs.

mod file_mapping;
mod files;
mod futex;
mod limits;
mod local;
mod memory;
mod prctl;
mod processes;
mod scheduling;
mod signals;
pub mod table;
mod threads;
mod time;
mod timeouts;
mod timers;

use alloc::boxed::Box;

use insula_bare::trap::PAGE_FAULT;

use crate::cores::{self, Counter};
use crate::info;
pub use crate::process::Flow;
use crate::process::errno::{Errno, as_result};
use crate::process::signals::Info;
use crate::process::vma::Protection;
use crate::process::{self, Thread};
pub use local::Local;
pub(crate) use processes::complete_exec;
use table::Kind;

/// Numbers of the system calls that this kernel itself uses.
pub mod number {
    /// `close`.
    pub const CLOSE: u64 = 3;
    /// `stat`.
    pub const STAT: u64 = 4;
    /// `fstat`.
    pub const FSTAT: u64 = 5;
    /// `poll`.
    pub const POLL: u64 = 7;
    /// `rt_sigaction`.
    pub const RT_SIGACTION: u64 = 13;
    /// `rt_sigprocmask`.
    pub const RT_SIGPROCMASK: u64 = 14;
    /// `pread64`.
    pub const PREAD64: u64 = 17;
    /// `pwrite64`.
    pub const PWRITE64: u64 = 18;
    /// `madvise`.
    pub const MADVISE: u64 = 28;
    /// `pause`.
    pub const PAUSE: u64 = 34;
    /// `nanosleep`.
    pub const NANOSLEEP: u64 = 35;
    /// `fcntl`.
    pub const FCNTL: u64 = 72;
    /// `kill`.
    pub const KILL: u64 = 62;
    /// `ftruncate`.
    pub const FTRUNCATE: u64 = 77;
    /// `getrlimit`.
    pub const GETRLIMIT: u64 = 97;
    /// `getrusage`.
    pub const GETRUSAGE: u64 = 98;
    /// `sysinfo`.
    pub const SYSINFO: u64 = 99;
    /// `times`.
    pub const TIMES: u64 = 100;
    /// `setuid`.
    pub const SETUID: u64 = 105;
    /// `setreuid`.
    pub const SETREUID: u64 = 113;
    /// `setresuid`.
    pub const SETRESUID: u64 = 117;
    /// `getuid`.
    pub const GETUID: u64 = 102;
    /// `getgid`.
    pub const GETGID: u64 = 104;
    /// `geteuid`.
    pub const GETEUID: u64 = 107;
    /// `getegid`.
    pub const GETEGID: u64 = 108;
    /// `rt_sigqueueinfo`.
    pub const RT_SIGQUEUEINFO: u64 = 129;
    /// `rt_tgsigqueueinfo`.
    pub const RT_TGSIGQUEUEINFO: u64 = 297;
    /// `rt_sigtimedwait`.
    pub const RT_SIGTIMEDWAIT: u64 = 128;
    /// `rt_sigsuspend`.
    pub const RT_SIGSUSPEND: u64 = 130;
    /// `personality`.
    pub const PERSONALITY: u64 = 135;
    /// `getpriority`.
    pub const GETPRIORITY: u64 = 140;
    /// `setpriority`.
    pub const SETPRIORITY: u64 = 141;
    /// `prctl`.
    pub const PRCTL: u64 = 157;
    /// `tkill`.
    pub const TKILL: u64 = 200;
    /// `futex`.
    pub const FUTEX: u64 = 202;
    /// `getdents64`.
    pub const GETDENTS64: u64 = 217;
    /// `semtimedop`.
    pub const SEMTIMEDOP: u64 = 220;
    /// `timer_create`.
    pub const TIMER_CREATE: u64 = 222;
    /// `timer_delete`.
    pub const TIMER_DELETE: u64 = 226;
    /// `clock_nanosleep`.
    pub const CLOCK_NANOSLEEP: u64 = 230;
    /// `epoll_wait`.
    pub const EPOLL_WAIT: u64 = 232;
    /// `unshare`.
    pub const UNSHARE: u64 = 272;
    /// `epoll_pwait`.
    pub const EPOLL_PWAIT: u64 = 281;
    /// `setns`.
    pub const SETNS: u64 = 308;
    /// `epoll_pwait2`.
    pub const EPOLL_PWAIT2: u64 = 441;
    /// `clock_gettime`.
    pub const CLOCK_GETTIME: u64 = 228;
    /// `tgkill`.
    pub const TGKILL: u64 = 234;
    /// `pselect6`.
    pub const PSELECT6: u64 = 270;
    /// `openat`.
    pub const OPENAT: u64 = 257;
    /// `getrandom`.
    pub const GETRANDOM: u64 = 318;
    /// `close_range`.
    pub const CLOSE_RANGE: u64 = 436;
    /// `prlimit64`.
    pub const PRLIMIT64: u64 = 302;
    /// `faccessat2`.
    pub const FACCESSAT2: u64 = 439;
}

/// Wait status of a program terminated by SIGSEGV.
const SEGMENTATION_FAULT: u64 = 11;

/// Executes the system call of a thread.
#[must_use]
pub fn execute(mut thread: Box<Thread>) -> Flow {
    if thread.restarted_call.take().is_none() {
        thread.call_deadline_ns = None;
    }
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
    cores::count_call(number);
    match table::find(number).map(|call| call.kind) {
        Some(Kind::Local(local)) => execute_local(thread, local, arguments),
        Some(Kind::Delegated) if is_mirror_fd(&thread, number, arguments) => {
            finish(thread, Err(Errno::EBADF))
        }
        Some(Kind::Delegated) => delegate(thread, number, arguments),
        Some(Kind::Masked { argument }) => {
            signals::delegate_masked(thread, number, arguments, argument)
        }
        Some(Kind::Refused { errno, .. }) => finish(thread, Err(errno)),
        None => finish(thread, Err(Errno::ENOSYS)),
    }
}

/// Whether a call would close, replace or copy the proxy's descriptor of the mm mirror. It is not
/// the program's, and a copy left anywhere would make the base believe that the proxy is alive.
fn is_mirror_fd(thread: &Thread, number: u64, arguments: [u64; 6]) -> bool {
    const CLOSE: u64 = 3;
    const IOCTL: u64 = 16;
    const DUP: u64 = 32;
    const DUP2: u64 = 33;
    const FCNTL: u64 = 72;
    const DUP3: u64 = 292;
    let mirror_fd = thread.process.pages().mirror_fd();
    match number {
        CLOSE | IOCTL | DUP | FCNTL => arguments[0] as u32 == mirror_fd as u32,
        DUP2 | DUP3 => {
            arguments[0] as u32 == mirror_fd as u32 || arguments[1] as u32 == mirror_fd as u32
        }
        _ => false,
    }
}

/// Denies the program access to the proxy's own memory, which is above all addresses of the
/// program: an argument that points there is made non-canonical, so that a call that dereferences
/// it fails with EFAULT. Other 64-bit numbers are unlikely to be in that range.
pub(crate) fn mask_proxy_pointers(arguments: [u64; 6], (_, end): (u64, u64)) -> [u64; 6] {
    /// End of all user addresses.
    const NON_CANONICAL: u64 = 1 << 47;
    /// The last page below is never mapped.
    const TOP: u64 = NON_CANONICAL - process::PAGE;
    arguments.map(|argument| match (end..TOP).contains(&argument) {
        true => argument | NON_CANONICAL,
        false => argument,
    })
}

/// Delegates a call to the base.
fn delegate(mut thread: Box<Thread>, number: u64, arguments: [u64; 6]) -> Flow {
    cores::count(Counter::DelegatedCalls);
    let mut arguments = mask_proxy_pointers(arguments, thread.process.pages().bounds());
    timeouts::set_remaining_time(&mut thread, number, &mut arguments);
    if may_change_uid(number) {
        thread.uid = None;
    }
    if signals::may_use_terminal(number) && signals::is_mask_outdated(&thread) {
        return Flow::handler(thread, move |mut thread| async move {
            signals::block_in_proxy(&mut thread).await;
            submit(thread, number, arguments)
        });
    }
    submit(thread, number, arguments)
}

fn submit(mut thread: Box<Thread>, number: u64, arguments: [u64; 6]) -> Flow {
    thread.interruptible_call = Some(number);
    thread.slot.submit(number, arguments);
    Flow::Delegated(thread)
}

/// Whether a call may change the thread's user id.
fn may_change_uid(number: u64) -> bool {
    use number::{SETNS, SETRESUID, SETREUID, SETUID, UNSHARE};
    matches!(number, SETUID | SETREUID | SETRESUID | UNSHARE | SETNS)
}

/// Whether a call interrupted by a signal is restarted if the handler has SA_RESTART. Calls with a
/// timeout, and calls that wait for a signal, are not (signal(7) of Linux).
#[must_use]
pub fn is_restartable(number: u64, thread: &Thread) -> bool {
    /// poll, select, pause, nanosleep, semop, msgsnd, msgrcv, rt_sigtimedwait, rt_sigsuspend,
    /// io_getevents, semtimedop, clock_nanosleep, epoll_wait, pselect6, ppoll, epoll_pwait,
    /// epoll_pwait2; and close, which has closed the file.
    const NEVER: [u64; 18] = [
        3, 7, 23, 34, 35, 65, 69, 70, 128, 130, 208, 220, 230, 232, 270, 271, 281, 441,
    ];
    let has_time = number == self::number::FUTEX && thread.context.registers.r10 != 0;
    !has_time && !NEVER.contains(&number)
}

fn finish(mut thread: Box<Thread>, result: Result<u64, Errno>) -> Flow {
    thread.context.registers.rax = as_result(result);
    Flow::Continue(thread)
}

fn execute_local(mut thread: Box<Thread>, local: Local, arguments: [u64; 6]) -> Flow {
    cores::count(Counter::LocalCalls);
    let a = arguments;
    let result = match local {
        Local::Mmap => return memory::mmap(thread, a),
        Local::Munmap => return memory::munmap(thread, a[0], a[1]),
        Local::Mprotect => return memory::mprotect(thread, a[0], a[1], a[2]),
        Local::Madvise => return memory::madvise(thread, a[0], a[1], a[2]),
        Local::Msync => memory::msync(&mut thread, a[0], a[1]),
        Local::Brk => return memory::brk(thread, a[0]),
        Local::Mlock => Ok(0),
        Local::ArchPrctl => threads::arch_prctl(&mut thread, a[0], a[1]),
        Local::Clone => return threads::clone(thread, a),
        Local::Clone3 => return threads::clone3(thread, a[0], a[1]),
        Local::Fork => return processes::fork(thread),
        Local::Vfork => return processes::vfork(thread),
        Local::Execve => return processes::execve(thread, a),
        Local::Execveat => return processes::execveat(thread, a),
        Local::CloseRange => return files::close_range(thread, a),
        Local::SetTidAddress => {
            thread.clear_child_tid = a[0];
            Ok(thread.id)
        }
        Local::SetRobustList => {
            thread.robust_list = (a[0], a[1]);
            Ok(0)
        }
        Local::Getpid => Ok(thread.process.pages().pid()),
        Local::Gettid => Ok(thread.id),
        Local::Getcpu => threads::getcpu(&mut thread, a[0], a[1]),
        Local::Getrlimit => return limits::get(thread, a),
        Local::Setrlimit => return limits::set(thread, a),
        Local::Prlimit64 => return limits::prlimit(thread, a),
        Local::Getpriority => return scheduling::nice(thread, a),
        Local::Setpriority => return scheduling::set_nice(thread, a),
        Local::SchedGetaffinity => scheduling::affinity(&mut thread, a[0], a[1], a[2]),
        Local::SchedGetattr => scheduling::attributes(&thread, a),
        Local::SchedGetparam => scheduling::parameter(&thread, a[0], a[1]),
        Local::SchedGetscheduler => scheduling::policy(&thread, a[0]),
        Local::SchedRrGetInterval => scheduling::interval(&thread, a[0], a[1]),
        Local::SchedSetaffinity => return scheduling::set_affinity(thread, a[0], a[1], a[2]),
        Local::SchedSetattr => return scheduling::set_attributes(thread, a),
        Local::SchedSetparam => return scheduling::set_policy(thread, a[0], None, a[1]),
        Local::SchedSetscheduler => {
            return scheduling::set_policy(thread, a[0], Some(a[1]), a[2]);
        }
        Local::Personality => processes::personality(&thread, a[0]),
        Local::Rseq => threads::rseq(&mut thread, a),
        Local::RtSigaction => return signals::action(thread, a),
        Local::RtSigpending => signals::pending(&mut thread, a[0], a[1]),
        Local::RtSigprocmask => signals::mask(&mut thread, a),
        Local::RtSigqueueinfo => return signals::queue(thread, a),
        Local::RtTgsigqueueinfo => return signals::queue_for_thread(thread, a),
        Local::Sigaltstack => signals::alternate_stack(&mut thread, a[0], a[1]),
        Local::RtSigreturn => return signals::sigreturn(thread),
        Local::RtSigsuspend => return signals::suspend(thread, a[0], a[1]),
        Local::RtSigtimedwait => return signals::timed_wait(thread, a),
        Local::Pause => return signals::pause(thread),
        Local::Kill => return signals::kill(thread, a),
        Local::Tkill => return signals::kill_any_thread(thread, a),
        Local::Tgkill => return signals::kill_thread(thread, a),
        Local::Membarrier => threads::barrier(&thread, a[0], a[1]),
        Local::Mremap => return memory::mremap(thread, a),
        Local::ClockGettime => return time::clock_gettime(thread, a),
        Local::Gettimeofday => time::gettimeofday(&mut thread, a[0], a[1]),
        Local::Time => time::time(&mut thread, a[0]),
        Local::Prctl => return prctl::prctl(thread, a),
        Local::Getrusage
        | Local::Sysinfo
        | Local::TimerCreate
        | Local::TimerDelete
        | Local::Times => return execute_with_base(thread, local, a),
        Local::SchedYield => {
            thread.context.registers.rax = 0;
            return Flow::Yield(thread);
        }
        Local::Futex => return futex::futex(thread, a),
        Local::Exit => {
            thread.exit((a[0] & 0xff) << 8);
            return Flow::Exit(thread);
        }
        Local::ExitGroup => {
            thread.exit_process((a[0] & 0xff) << 8);
            return Flow::Exit(thread);
        }
    };
    finish(thread, result)
}

/// Executes a local call of which the base does a part.
fn execute_with_base(thread: Box<Thread>, local: Local, a: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = match local {
            Local::Getrusage => time::getrusage(&mut thread, a[0], a[1]).await,
            Local::Sysinfo => memory::sysinfo(&mut thread, a[0]).await,
            Local::TimerCreate => timers::create(&mut thread, a).await,
            Local::TimerDelete => timers::delete(&mut thread, a[0]).await,
            Local::Times => time::times(&mut thread, a[0]).await,
            _ => Err(Errno::ENOSYS),
        };
        finish(thread, result)
    })
}

/// Handles an exception of a program.
#[must_use]
pub fn exception(mut thread: Box<Thread>, vector: u8, error: u64, address: u64) -> Flow {
    let mut info = signal_for_exception(vector);
    if u64::from(vector) == PAGE_FAULT {
        cores::count(Counter::Faults);
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
            // Another thread is unmapping the page: retry.
            Err(Errno::EAGAIN) => return Flow::Yield(thread),
            // `BUS_ADRERR`.
            Err(Errno::EIO) => info = Info::fault(process::signals::number::BUS, 2, address),
            Err(_) => info = fault_info(&thread, address),
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

fn fault_info(thread: &Thread, address: u64) -> Info {
    /// `SEGV_MAPERR` and `SEGV_ACCERR`.
    const MAPERR: i32 = 1;
    const ACCERR: i32 = 2;
    let page = address & !(crate::process::PAGE - 1);
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

#[cfg(test)]
mod tests {
    use super::mask_proxy_pointers;

    #[test]
    fn pointers_to_the_proxy_are_invalid() {
        let bounds = (0x1_0000, 0x7fff_d000_0000);
        let top = 0x7fff_ffff_f000;
        let given = [0, bounds.1 - 1, bounds.1, top - 1, top, u64::MAX];
        let nowhere = [bounds.1, top - 1].map(|address| address + (1 << 47));
        let wanted = [0, bounds.1 - 1, nowhere[0], nowhere[1], top, u64::MAX];
        assert_eq!(mask_proxy_pointers(given, bounds), wanted);
    }
}

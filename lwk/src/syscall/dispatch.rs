//! System calls: finding out who executes one.

use alloc::boxed::Box;

use crate::base::counters::{self, Counter};
use crate::model::errno::Errno;
use crate::syscall::delegate::{delegate, finish};
use crate::syscall::files::{self, is_mirror_fd};
use crate::syscall::local::Local;
use crate::syscall::signals::{action, frame, mask, send, wait};
use crate::syscall::table::{self, Kind};
use crate::syscall::{
    clone, exec, fork, futex, limits, memory, prctl, scheduling, threads, time, timers,
};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

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
    counters::count_call(number);
    match table::find(number).map(|call| call.kind) {
        Some(Kind::Local(local)) => execute_local(thread, local, arguments),
        Some(Kind::Delegated) if is_mirror_fd(&thread, number, arguments) => {
            finish(thread, Err(Errno::EBADF))
        }
        Some(Kind::Delegated) => delegate(thread, number, arguments),
        Some(Kind::Masked { argument }) => {
            mask::delegate_masked(thread, number, arguments, argument)
        }
        Some(Kind::Refused { errno, .. }) => finish(thread, Err(errno)),
        None => finish(thread, Err(Errno::ENOSYS)),
    }
}

fn execute_local(mut thread: Box<Thread>, local: Local, arguments: [u64; 6]) -> Flow {
    counters::count(Counter::LocalCalls);
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
        Local::Clone => return clone::clone(thread, a),
        Local::Clone3 => return clone::clone3(thread, a[0], a[1]),
        Local::Fork => return fork::fork(thread),
        Local::Vfork => return fork::vfork(thread),
        Local::Execve => return exec::execve(thread, a),
        Local::Execveat => return exec::execveat(thread, a),
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
        Local::Personality => prctl::personality(&thread, a[0]),
        Local::Rseq => threads::rseq(&mut thread, a),
        Local::RtSigaction => return action::action(thread, a),
        Local::RtSigpending => mask::pending(&mut thread, a[0], a[1]),
        Local::RtSigprocmask => mask::mask(&mut thread, a),
        Local::RtSigqueueinfo => return send::queue(thread, a),
        Local::RtTgsigqueueinfo => return send::queue_for_thread(thread, a),
        Local::Sigaltstack => frame::alternate_stack(&mut thread, a[0], a[1]),
        Local::RtSigreturn => return frame::sigreturn(thread),
        Local::RtSigsuspend => return wait::suspend(thread, a[0], a[1]),
        Local::RtSigtimedwait => return wait::timed_wait(thread, a),
        Local::Pause => return wait::pause(thread),
        Local::Kill => return send::kill(thread, a),
        Local::Tkill => return send::kill_any_thread(thread, a),
        Local::Tgkill => return send::kill_thread(thread, a),
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

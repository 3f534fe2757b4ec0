//! Threads of another process that are stopped by ptrace(2), and system calls that they make for us.

#![allow(
    unsafe_code,
    reason = "requests of ptrace(2) that nix does not have take addresses"
)]

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{self, c_long, c_void, iovec, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::failure::Failure;
use crate::state::Scheduling;

/// A thread that does not stop in this time waits for something that no signal ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
const STOP_POLL: Duration = Duration::from_micros(100);
/// Most bytes of an extended state.
const EXTENDED_MAX: usize = 16 << 10;
/// `PTRACE_GET_RSEQ_CONFIGURATION`.
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RseqConfiguration {
    pub(crate) address: u64,
    pub(crate) size: u32,
    pub(crate) signature: u32,
    flags: u32,
    padding: u32,
}

/// A thread that is stopped, and its state at that moment. When this is dropped the thread goes on from
/// there.
#[derive(Debug)]
pub(crate) struct Tracee {
    pid: Pid,
    /// Registers that it goes on with.
    pub(crate) registers: user_regs_struct,
    /// Signals that it blocks: bit number - 1 of each.
    pub(crate) blocked: u64,
    /// SIGSTOP that came while it was stopped.
    stop: Option<Signal>,
}

impl Tracee {
    /// Has a thread stop. [`stopped`](Self::stopped) waits for that.
    pub(crate) fn interrupt(thread: i32) -> Result<Pid, Failure> {
        let pid = Pid::from_raw(thread);
        let failed = || Failure::of(format!("stopping its thread {thread}"));
        ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD).map_err(failed())?;
        ptrace::interrupt(pid).map_err(failed())?;
        Ok(pid)
    }

    /// Waits until a thread is stopped, and reads its state.
    pub(crate) fn stopped(pid: Pid) -> Result<Self, Failure> {
        let failed = || Failure::of(format!("stopping its thread {pid}"));
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            match waitpid(pid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).map_err(failed())?
            {
                WaitStatus::StillAlive if Instant::now() > deadline => {
                    return Err(Failure::new(
                        format!("stopping its thread {pid}"),
                        Errno::ETIMEDOUT,
                    ));
                }
                WaitStatus::StillAlive => std::thread::sleep(STOP_POLL),
                WaitStatus::PtraceEvent(..) => break,
                // It has been taken for this thread: its handler begins before the thread stops.
                WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal).map_err(failed())?,
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => {
                    return Err(Failure::new("stopping it", Errno::ESRCH));
                }
                _ => ptrace::cont(pid, None).map_err(failed())?,
            }
        }
        Ok(Self {
            pid,
            registers: ptrace::getregs(pid).map_err(failed())?,
            blocked: signal_mask(pid).map_err(failed())?,
            stop: None,
        })
    }

    /// Its id in this process's namespace.
    pub(crate) fn id(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Its policy, with `SCHED_RESET_ON_FORK` if set, which `/proc` does not show.
    pub(crate) fn policy(&self) -> Option<u32> {
        // SAFETY: it takes no address.
        let policy = unsafe { libc::sched_getscheduler(self.id()) };
        u32::try_from(policy).ok()
    }

    /// Sets how it is scheduled, if this process may. A deadline stays: the node knows none.
    pub(crate) fn schedule(&self, scheduling: Scheduling) {
        let reset = libc::SCHED_RESET_ON_FORK.cast_unsigned();
        let deadline = libc::SCHED_DEADLINE.cast_unsigned();
        if self
            .policy()
            .is_some_and(|policy| policy & !reset == deadline)
        {
            return;
        }
        let parameters = libc::sched_param {
            sched_priority: scheduling.priority.cast_signed(),
        };
        let (id, policy) = (self.id(), scheduling.policy.cast_signed());
        // SAFETY: the parameters live as long as the call.
        unsafe {
            libc::sched_setscheduler(id, policy, &raw const parameters);
            libc::setpriority(libc::PRIO_PROCESS, id.cast_unsigned(), scheduling.nice);
        }
    }

    /// Has it block all signals, so that no handler runs between the calls that it makes.
    pub(crate) fn block_signals(&self) -> Result<(), Failure> {
        set_signal_mask(self.pid, u64::MAX).map_err(Failure::of("blocking its signals"))
    }

    /// Reads its extended state, in XSAVE's standard format.
    pub(crate) fn extended(&self) -> Result<Vec<u8>, Failure> {
        const NT_X86_XSTATE: usize = 0x202;
        let mut bytes = vec![0_u8; EXTENDED_MAX];
        let mut part = iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the kernel writes at most `iov_len` bytes to the buffer, and their number.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_GETREGSET,
                self.pid.as_raw(),
                NT_X86_XSTATE as *mut c_void,
                &raw mut part,
            )
        };
        Errno::result(result).map_err(Failure::of("reading its extended registers"))?;
        bytes.truncate(part.iov_len);
        Ok(bytes)
    }

    /// Sets its extended state, of which the node's kernel may know less than the base.
    pub(crate) fn set_extended(&self, known: &[u8]) -> Result<(), Failure> {
        const NT_X86_XSTATE: usize = 0x202;
        let mut bytes = self.extended()?;
        overlay(&mut bytes, known);
        let mut part = iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the kernel reads at most `iov_len` bytes of the buffer.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_SETREGSET,
                self.pid.as_raw(),
                NT_X86_XSTATE as *mut c_void,
                &raw mut part,
            )
        };
        let done = Errno::result(result).map(drop);
        done.map_err(Failure::of("restoring its extended registers"))
    }

    /// Returns its registration for restartable sequences; an address of 0 for none.
    pub(crate) fn rseq(&self) -> Result<RseqConfiguration, Failure> {
        let mut found = RseqConfiguration::default();
        // SAFETY: the kernel writes at most the structure, of the given size.
        let result = unsafe {
            libc::ptrace(
                GET_RSEQ_CONFIGURATION,
                self.pid.as_raw(),
                size_of::<RseqConfiguration>() as *mut c_void,
                &raw mut found,
            )
        };
        match Errno::result(result) {
            // A kernel without restartable sequences.
            Err(Errno::EIO | Errno::EINVAL) => Ok(RseqConfiguration::default()),
            result => result
                .map(|_| found)
                .map_err(Failure::of("reading its rseq registration")),
        }
    }

    /// Returns its list of robust futexes: address and size of the head.
    pub(crate) fn robust_list(&self) -> Result<(u64, u64), Failure> {
        let (mut head, mut size) = (0_u64, 0_u64);
        // SAFETY: the kernel writes two words.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_robust_list,
                self.pid.as_raw(),
                &raw mut head,
                &raw mut size,
            )
        };
        Errno::result(result).map_err(Failure::of("reading its robust futexes"))?;
        Ok((head, size))
    }

    /// Has it make a system call, by the instruction `syscall` at an address.
    pub(crate) fn call(
        &mut self,
        at: u64,
        number: c_long,
        arguments: &[u64],
    ) -> Result<u64, Errno> {
        let argument = |place: usize| arguments.get(place).copied().unwrap_or(0);
        let registers = user_regs_struct {
            rip: at,
            rax: number.cast_unsigned(),
            // Else the call that was interrupted would be restarted.
            orig_rax: u64::MAX,
            rdi: argument(0),
            rsi: argument(1),
            rdx: argument(2),
            r10: argument(3),
            r8: argument(4),
            r9: argument(5),
            ..self.registers
        };
        ptrace::setregs(self.pid, registers)?;
        self.run_to_call()?;
        self.run_to_call()?;
        let result = ptrace::getregs(self.pid)?.rax.cast_signed();
        match result {
            -4095..0 => Err(Errno::from_raw(-result as i32)),
            result => Ok(result.cast_unsigned()),
        }
    }

    /// Lets it run until it begins or ends a system call.
    fn run_to_call(&mut self) -> Result<(), Errno> {
        loop {
            ptrace::syscall(self.pid, None)?;
            match waitpid(self.pid, Some(WaitPidFlag::__WALL))? {
                WaitStatus::PtraceSyscall(_) => return Ok(()),
                WaitStatus::Stopped(_, Signal::SIGSTOP) => self.stop = Some(Signal::SIGSTOP),
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err(Errno::ESRCH),
                WaitStatus::Stopped(..) => return Err(Errno::EFAULT),
                _ => {}
            }
        }
    }

    /// Lets it go on with its present registers, and a signal mask.
    fn release(&self, blocked: u64) -> Result<(), Errno> {
        ptrace::setregs(self.pid, self.registers)?;
        set_signal_mask(self.pid, blocked)?;
        ptrace::detach(self.pid, self.stop)
    }

    /// Lets it go on with other registers, and a signal mask.
    pub(crate) fn release_with(
        mut self,
        registers: user_regs_struct,
        blocked: u64,
    ) -> Result<(), Errno> {
        self.registers = registers;
        // Dropping it would do the same; this tells whether it worked.
        let done = self.release(blocked);
        std::mem::forget(self);
        done
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // It fails only if the thread has been killed.
        let _ = self.release(self.blocked);
    }
}

fn signal_mask(pid: Pid) -> Result<u64, Errno> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes a set of the given size.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETSIGMASK,
            pid.as_raw(),
            size_of::<u64>() as *mut c_void,
            &raw mut mask,
        )
    };
    Errno::result(result).map(|_| mask)
}

fn set_signal_mask(pid: Pid, mask: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads a set of the given size.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_SETSIGMASK,
            pid.as_raw(),
            size_of::<u64>() as *mut c_void,
            &raw const mask,
        )
    };
    Errno::result(result).map(drop)
}

/// Replaces an extended state, but for what the kernel has in it for itself.
fn overlay(bytes: &mut [u8], known: &[u8]) {
    /// `sw_reserved` of `struct fxregs_state`.
    const RESERVED: std::ops::Range<usize> = 464..512;
    for (at, (to, from)) in bytes.iter_mut().zip(known).enumerate() {
        if !RESERVED.contains(&at) {
            *to = *from;
        }
    }
}

/// Registers that are all zero.
pub(crate) fn no_registers() -> user_regs_struct {
    // SAFETY: the structure consists of integers.
    unsafe { std::mem::zeroed() }
}

//! How a thread goes on elsewhere that was interrupted in a system call: the call is made again, as by
//! the kernel itself after a signal without a handler.

use nix::libc::{self, user_regs_struct};

/// Results by which the kernel marks an interrupted call (include/linux/errno.h of Linux).
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;
/// Size of the instruction `syscall`.
const SYSCALL_SIZE: u64 = 2;

/// Number of io_pgetevents(2).
const IO_PGETEVENTS: i64 = 333;

/// Calls that return EINTR even if no handler runs, as when the thread is stopped by ptrace(2):
/// signal(7) of Linux. They have done nothing then.
const INTERRUPTED: [i64; 19] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    // Of sockets with a timeout.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Prepares the registers of a stopped thread for going on elsewhere.
pub(crate) fn prepare(registers: &mut user_regs_struct) {
    let number = registers.orig_rax.cast_signed();
    if number < 0 {
        return;
    }
    let again = match registers.rax.cast_signed() {
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => number,
        // The node's kernel has the futexes; their timeout begins anew. All else waits on the base.
        ERESTART_RESTARTBLOCK if number == libc::SYS_futex => number,
        ERESTART_RESTARTBLOCK => libc::SYS_restart_syscall,
        result if result == -i64::from(libc::EINTR) && INTERRUPTED.contains(&number) => number,
        _ => return,
    };
    registers.rax = again.cast_unsigned();
    registers.rip -= SYSCALL_SIZE;
}

/// Size of `struct rseq_cs`, in bytes.
pub(crate) const SEQUENCE_SIZE: usize = 32;

/// The address at which a thread goes on that has left its core at `rip` while it may have been in a
/// restartable sequence, by its `struct rseq_cs` as words.
pub(crate) fn after_sequence(rip: u64, [_, start, size, abort]: [u64; SEQUENCE_SIZE / 8]) -> u64 {
    match rip.wrapping_sub(start) < size {
        true => abort,
        false => rip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a call with a result: the number of the call to be made, and the address.
    fn after(call: i64, result: i64) -> (i64, u64) {
        let mut registers = crate::ptrace::no_registers();
        registers.orig_rax = call.cast_unsigned();
        registers.rax = result.cast_unsigned();
        registers.rip = 0x1002;
        prepare(&mut registers);
        (registers.rax.cast_signed(), registers.rip)
    }

    #[test]
    fn interrupted_calls_are_made_again() {
        let read = libc::SYS_read;
        for result in [-512, -513, -514, -4] {
            assert_eq!(after(read, result), (read, 0x1000), "{result}");
        }
        let sleep = libc::SYS_nanosleep;
        assert_eq!(after(sleep, -516), (libc::SYS_restart_syscall, 0x1000));
        assert_eq!(after(libc::SYS_futex, -516), (libc::SYS_futex, 0x1000));
    }

    #[test]
    fn complete_calls_keep_their_results() {
        for result in [0, 7, -11, -515] {
            assert_eq!(after(libc::SYS_read, result), (result, 0x1002));
        }
        assert_eq!(after(libc::SYS_connect, -4), (-4, 0x1002));
        // Not in a call: RAX is the program's.
        assert_eq!(after(-1, -512), (-512, 0x1002));
    }

    #[test]
    fn a_restartable_sequence_is_aborted() {
        let sequence = [0, 0x1000, 16, 0x2000];
        let found = [0xfff, 0x1000, 0x100f, 0x1010].map(|rip| after_sequence(rip, sequence));
        assert_eq!(found, [0xfff, 0x2000, 0x2000, 0x1010]);
    }
}

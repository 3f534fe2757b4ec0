//! The state of a process as its new kernel gets it (insula_running.h).

use insula_abi::running::{Action, Running, SIGNALS, Thread, Timer, Vma};
use nix::libc::user_regs_struct;
use zerocopy::IntoBytes;

use crate::ptrace::RseqConfiguration;

/// State of a thread that is not in its registers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadState {
    /// Its id in its own pid namespace.
    pub(crate) id: u64,
    pub(crate) slot: u32,
    pub(crate) extended: Vec<u8>,
    pub(crate) clear_child_tid: u64,
    pub(crate) robust_list: (u64, u64),
    pub(crate) rseq: RseqConfiguration,
    /// As of sigaltstack(2): address, flags, size.
    pub(crate) stack: [u64; 3],
    pub(crate) cpu_time_ns: u64,
    pub(crate) scheduling: Scheduling,
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scheduling {
    pub(crate) nice: i32,
    /// As of sched_setscheduler(2).
    pub(crate) policy: u32,
    pub(crate) priority: u32,
}

/// State of a process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessState {
    pub(crate) vmas: Vec<Vma>,
    pub(crate) timers: Vec<Timer>,
    pub(crate) heap: (u64, u64),
    /// Both 0 if there is none that grows.
    pub(crate) stack: (u64, u64),
    pub(crate) signals_of_fds: u64,
    pub(crate) actions: [Action; SIGNALS],
    /// The auxiliary vector.
    pub(crate) auxiliary: Vec<u8>,
    /// The path of its file.
    pub(crate) path: Vec<u8>,
}

impl ProcessState {
    /// Size of the encoded state, in bytes, by the number of threads, and the size of an extended state.
    pub(crate) fn size(&self, threads: usize, extended_size: usize) -> usize {
        size_of::<Running>()
            + size_of_val(self.vmas.as_slice())
            + size_of_val(self.timers.as_slice())
            + threads * (size_of::<Thread>() + extended_size)
            + self.auxiliary.len()
            + self.path.len()
    }

    /// Encodes it, with the proxy's part of the addresses, and for each thread its state, its registers
    /// and the signals that it blocks.
    pub(crate) fn encode(
        &self,
        region: (u64, u64),
        threads: &[(&ThreadState, user_regs_struct, u64)],
    ) -> Vec<u8> {
        let extended_size = threads
            .first()
            .map_or(0, |(state, ..)| state.extended.len());
        let size = self.size(threads.len(), extended_size);
        let head = Running {
            size: size as u64,
            region_start: region.0,
            region_end: region.1,
            heap_start: self.heap.0,
            heap_end: self.heap.1,
            stack_start: self.stack.0,
            stack_end: self.stack.1,
            signals_of_fds: self.signals_of_fds,
            vmas: self.vmas.len() as u32,
            timers: self.timers.len() as u32,
            threads: threads.len() as u32,
            extended_size: extended_size as u32,
            auxiliary_size: self.auxiliary.len() as u32,
            path_size: self.path.len() as u32,
            actions: self.actions,
        };
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(self.vmas.as_bytes());
        bytes.extend_from_slice(self.timers.as_bytes());
        for (state, registers, blocked) in threads {
            bytes.extend_from_slice(thread(state, registers, *blocked).as_bytes());
        }
        for (state, ..) in threads {
            bytes.extend_from_slice(&state.extended);
        }
        bytes.extend_from_slice(&self.auxiliary);
        bytes.extend_from_slice(&self.path);
        bytes
    }
}

fn thread(state: &ThreadState, registers: &user_regs_struct, blocked: u64) -> Thread {
    let [stack_start, stack_flags, stack_size] = state.stack;
    Thread {
        id: state.id,
        slot: state.slot.into(),
        blocked,
        rax: registers.rax,
        rbx: registers.rbx,
        rcx: registers.rcx,
        rdx: registers.rdx,
        rsi: registers.rsi,
        rdi: registers.rdi,
        rbp: registers.rbp,
        rsp: registers.rsp,
        r8: registers.r8,
        r9: registers.r9,
        r10: registers.r10,
        r11: registers.r11,
        r12: registers.r12,
        r13: registers.r13,
        r14: registers.r14,
        r15: registers.r15,
        rip: registers.rip,
        rflags: registers.eflags,
        fs_base: registers.fs_base,
        gs_base: registers.gs_base,
        clear_child_tid: state.clear_child_tid,
        robust_list: state.robust_list.0,
        robust_list_size: state.robust_list.1,
        rseq: state.rseq.address,
        rseq_size: state.rseq.size,
        rseq_signature: state.rseq.signature,
        stack_start,
        stack_size,
        // Whether the thread is on it now follows from its stack pointer.
        stack_flags: stack_flags & !ON_STACK,
        cpu_time_ns: state.cpu_time_ns,
        nice: state.scheduling.nice,
        policy: state.scheduling.policy,
        priority: state.scheduling.priority,
        reserved: 0,
    }
}

/// `SS_ONSTACK`.
const ON_STACK: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_that_of_the_bytes() {
        let state = ProcessState {
            vmas: vec![Vma::default(); 3],
            timers: vec![Timer::default()],
            heap: (1, 2),
            stack: (3, 4),
            signals_of_fds: 5,
            actions: [Action::default(); SIGNALS],
            auxiliary: vec![1; 32],
            path: vec![2; 5],
        };
        let thread = ThreadState {
            extended: vec![7; 100],
            ..Default::default()
        };
        let registers = crate::ptrace::no_registers();
        let bytes = state.encode((6, 7), &[(&thread, registers, 8), (&thread, registers, 9)]);
        assert_eq!(bytes.len(), state.size(2, 100));
        assert_eq!(bytes[..8], (bytes.len() as u64).to_ne_bytes());
        let tail = [vec![7; 200], vec![1; 32], vec![2; 5]].concat();
        assert!(bytes.ends_with(&tail));
    }
}

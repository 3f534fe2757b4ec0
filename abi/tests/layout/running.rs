//! Layout of `insula_running.h` as the Rust mirror has it.

use insula_abi::running::{self, Action, Range, Running, Thread, Timer, Vma};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Action,
        "insula_lwk_running_action",
        [handler, flags, restorer, mask]
    );
    structure!(
        facts,
        Running,
        "insula_lwk_running",
        [
            size,
            region_start,
            region_end,
            heap_start,
            heap_end,
            stack_start,
            stack_end,
            signals_of_fds,
            vmas,
            timers,
            threads,
            extended_size,
            auxiliary_size,
            path_size,
            actions
        ]
    );
    structure!(
        facts,
        Vma,
        "insula_lwk_running_vma",
        [start, end, protection, flags]
    );
    structure!(facts, Range, "insula_lwk_running_range", [start, end]);
    structure!(facts, Timer, "insula_lwk_running_timer", [id, to_thread]);
    structure!(
        facts,
        Thread,
        "insula_lwk_running_thread",
        [
            id,
            slot,
            blocked,
            rax,
            rbx,
            rcx,
            rdx,
            rsi,
            rdi,
            rbp,
            rsp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip,
            rflags,
            fs_base,
            gs_base,
            clear_child_tid,
            robust_list,
            robust_list_size,
            rseq,
            rseq_size,
            rseq_signature,
            stack_start,
            stack_size,
            stack_flags,
            cpu_time_ns,
            nice,
            policy,
            priority,
            reserved
        ]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_LWK_RUNNING_SIGNALS = running::SIGNALS,
        INSULA_LWK_RUNNING_SHARED = running::SHARED,
        INSULA_LWK_RUNNING_DONT_FORK = running::DONT_FORK,
        INSULA_LWK_RUNNING_WIPE_ON_FORK = running::WIPE_ON_FORK,
        INSULA_LWK_RUNNING_DONT_DUMP = running::DONT_DUMP,
        INSULA_LWK_RUNNING_LOCKED = running::LOCKED,
    });
    facts
}

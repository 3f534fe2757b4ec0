//! Layout of `insula_lwk.h` as the Rust mirror has it.

use insula_abi::ioctl;
use insula_abi::lwk::{
    self, Calls, Clock, Core, Counters, Delegation, DelegationPlace, Fault, FaultAnswer, Maps,
    MayMap, MirrorCreate, MirrorFaultIn, MirrorFork, MirrorInvalidate, MirrorLeave, MirrorMap,
    MirrorSignal, MirrorStart, Process, Signal, SyscallSlot,
};

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Clock,
        "insula_lwk_clock",
        [
            sequence,
            tsc,
            realtime_ns,
            monotonic_ns,
            mult,
            fraction,
            reserved
        ]
    );
    structure!(
        facts,
        Delegation,
        "insula_lwk_delegation",
        [
            magic,
            revision,
            pages,
            base_doorbell,
            base_reserved,
            clock,
            lwk_doorbell,
            lwk_reserved,
            wake_summary,
            cancel_summary,
            process_summary,
            reserved
        ]
    );
    structure!(
        facts,
        Maps,
        "insula_lwk_maps",
        [
            wake_pending,
            cancel_pending,
            process_pending,
            reserved,
            process_of
        ]
    );
    structure!(
        facts,
        Counters,
        "insula_lwk_counters",
        [
            local_calls,
            delegated_calls,
            faults,
            remote_faults,
            requests,
            entries,
            switches,
            rings
        ]
    );
    structure!(
        facts,
        Process,
        "insula_lwk_process",
        [
            base_state,
            slot,
            pid,
            mirror_start,
            mirror_end,
            arguments_size,
            invalidated,
            descriptor,
            signals_overflow,
            parent,
            slots,
            ignored,
            blocked,
            signals_queued,
            stopped,
            running,
            lwk_state,
            page_table,
            signals_dequeued,
            left,
            left_size,
            lwk_reserved,
            queue,
            faults,
            answers,
            pinned_count,
            leave,
            pinned_reserved,
            pinned
        ]
    );
    structure!(
        facts,
        Fault,
        "insula_lwk_fault",
        [address, access, sequence, looked_up]
    );
    structure!(
        facts,
        FaultAnswer,
        "insula_lwk_fault_answer",
        [error, sequence]
    );
    structure!(
        facts,
        Signal,
        "insula_lwk_signal",
        [signal, error, code, thread, fields]
    );
    structure!(
        facts,
        MirrorSignal,
        "insula_mirror_signal",
        [signal, error, code, padding, fields]
    );
    structure!(facts, Calls, "insula_lwk_calls", [made]);
    structure!(facts, MayMap, "insula_lwk_may_map", [windows]);
    structure!(
        facts,
        SyscallSlot,
        "insula_lwk_syscall_slot",
        [
            sequence,
            number,
            arguments,
            answer_sequence,
            kind,
            result,
            value,
            answer_reserved,
            base_asleep,
            faulting,
            base_reserved,
            robust_list,
            lwk_asleep,
            scratch
        ]
    );
    structure!(
        facts,
        DelegationPlace,
        "insula_delegation",
        [start, pages, reserved]
    );
    structure!(
        facts,
        MirrorCreate,
        "insula_mirror_create",
        [start, end, slot, flags]
    );
    structure!(
        facts,
        MirrorStart,
        "insula_mirror_start",
        [arguments_size, descriptor, slots, ignored, blocked, running]
    );
    structure!(facts, MirrorMap, "insula_mirror_map", [start, end, flags]);
    structure!(
        facts,
        MirrorLeave,
        "insula_mirror_leave",
        [address, size, flags]
    );
    structure!(
        facts,
        MirrorFaultIn,
        "insula_mirror_fault_in",
        [address, access, owner]
    );
    structure!(
        facts,
        Core,
        "insula_lwk_core",
        [
            flush_requests,
            base_reserved,
            running,
            accesses,
            flushes_done,
            doorbell,
            interrupted_at,
            up_since,
            idle_ticks,
            lwk_reserved
        ]
    );
    structure!(facts, MirrorFork, "insula_mirror_fork", [slot, process]);
    structure!(
        facts,
        MirrorInvalidate,
        "insula_mirror_invalidate",
        [start, size, ticket, flags]
    );
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_LWK_MAGIC = lwk::LWK_MAGIC,
        INSULA_LWK_REVISION = lwk::LWK_REVISION,
        INSULA_LWK_PAGES_MIN = lwk::PAGES_MIN,
        INSULA_LWK_PAGES_MAX = lwk::PAGES_MAX,
        INSULA_LWK_SLOTS_PER_PAGE = lwk::SLOTS_PER_PAGE,
        INSULA_LWK_COUNTERS_PAGES = lwk::COUNTERS_PAGES,
        INSULA_LWK_CORES_PAGES = lwk::CORES_PAGES,
        INSULA_LWK_MAPS_PAGES = lwk::MAPS_PAGES,
        INSULA_LWK_PTE_BASE = lwk::PTE_BASE,
        INSULA_LWK_CORE_IDLE = lwk::CORE_IDLE,
        INSULA_LWK_ACCESS_WRITE = lwk::ACCESS_WRITE,
        INSULA_LWK_ACCESS_EXECUTE = lwk::ACCESS_EXECUTE,
        INSULA_LWK_FAULTS = lwk::FAULTS,
        INSULA_LWK_PINNED_MAX = lwk::PINNED_MAX,
        INSULA_LWK_MAY_MAP_SHIFT = lwk::MAY_MAP_SHIFT,
        INSULA_LWK_QUEUE = lwk::QUEUE,
        INSULA_LWK_RESULT = lwk::ANSWER_RESULT,
        INSULA_LWK_FAULT = lwk::ANSWER_FAULT,
        INSULA_LWK_NOT_BEGUN = lwk::NOT_BEGUN,
        INSULA_LWK_REQUEST = lwk::request::REQUEST,
        INSULA_LWK_RESOLVED = lwk::request::RESOLVED,
        INSULA_LWK_ARGUMENTS = lwk::request::ARGUMENTS,
        INSULA_LWK_THREAD = lwk::request::THREAD,
        INSULA_LWK_THREAD_END = lwk::request::THREAD_END,
        INSULA_LWK_EXIT = lwk::request::EXIT,
        INSULA_LWK_INVALIDATE = lwk::request::INVALIDATE,
        INSULA_LWK_FORK = lwk::request::FORK,
        INSULA_LWK_FAULT_IN = lwk::request::FAULT_IN,
        INSULA_LWK_COPY_ON_WRITE = lwk::COPY_ON_WRITE,
        INSULA_LWK_INVALIDATE_NO_QUIESCE = lwk::INVALIDATE_NO_QUIESCE,
        INSULA_LWK_INVALIDATE_SHARED = lwk::INVALIDATE_SHARED,
        INSULA_MIRROR_SLOTS = lwk::MIRROR_SLOTS,
        INSULA_MIRROR_SLOTS_SIZE = lwk::MIRROR_SLOTS_SIZE,
        INSULA_MIRROR_EXIT_SLOTS = lwk::MIRROR_EXIT_SLOTS,
        INSULA_MIRROR_CANCEL_SIGNAL = lwk::MIRROR_CANCEL_SIGNAL,
        INSULA_MIRROR_CREATE = ioctl::MIRROR_CREATE,
        INSULA_MIRROR_START = ioctl::MIRROR_START,
        INSULA_MIRROR_SLOT_ALLOC = ioctl::MIRROR_SLOT_ALLOC,
        INSULA_MIRROR_SLOT_ATTACH = ioctl::MIRROR_SLOT_ATTACH,
        INSULA_MIRROR_SLOT_FREE = ioctl::MIRROR_SLOT_FREE,
        INSULA_MIRROR_SLOT_WAIT = ioctl::MIRROR_SLOT_WAIT,
        INSULA_MIRROR_SLOT_WAKE = ioctl::MIRROR_SLOT_WAKE,
        INSULA_MIRROR_SIGNAL = ioctl::MIRROR_SIGNAL,
        INSULA_MIRROR_INVALIDATE = ioctl::MIRROR_INVALIDATE,
        INSULA_MIRROR_FORK = ioctl::MIRROR_FORK,
        INSULA_MIRROR_ADOPT = ioctl::MIRROR_ADOPT,
        INSULA_MIRROR_MAP_KEEP = lwk::MIRROR_MAP_KEEP,
        INSULA_MIRROR_CREATE_FOR_OTHER = lwk::MIRROR_FOR_OTHER,
        INSULA_MIRROR_MAP = ioctl::MIRROR_MAP,
        INSULA_MIRROR_FAULT_IN = ioctl::MIRROR_FAULT_IN,
        INSULA_MIRROR_LEAVE = ioctl::MIRROR_LEAVE,
        INSULA_MIRROR_LEAVE_CANCEL = lwk::MIRROR_LEAVE_CANCEL,
        INSULA_MIRROR_CLOSE_ON_EXEC = ioctl::MIRROR_CLOSE_ON_EXEC,
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_LWK_NONE = lwk::base_state::NONE,
        INSULA_LWK_STARTED = lwk::base_state::STARTED,
        INSULA_LWK_EXITED = lwk::base_state::EXITED,
        INSULA_LWK_UNMAPPED = lwk::base_state::UNMAPPED,
        INSULA_LWK_QUIESCED = lwk::base_state::QUIESCED,
        INSULA_LWK_UNKNOWN = lwk::process_state::UNKNOWN,
        INSULA_LWK_ALIVE = lwk::process_state::ALIVE,
        INSULA_LWK_REAPED = lwk::process_state::REAPED,
        INSULA_LWK_STOPPED = lwk::process_state::STOPPED,
    });
    facts
}

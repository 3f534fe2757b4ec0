//! Mirror of `include/insula_running.h`: a running process of the base that goes on as a program on a
//! lightweight kernel.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_LWK_RUNNING_SIGNALS`: signals that can have an action.
pub const SIGNALS: usize = 64;

/// `struct insula_lwk_running_action`: an action for a signal.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Action {
    /// `sa_handler`.
    pub handler: u64,
    /// `sa_flags`.
    pub flags: u64,
    /// `sa_restorer`.
    pub restorer: u64,
    /// `sa_mask`.
    pub mask: u64,
}

/// `struct insula_lwk_running`: the head of the block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Running {
    /// Of the block, in bytes.
    pub size: u64,
    /// Start of the proxy's own part of the program's addresses.
    pub region_start: u64,
    /// Its end.
    pub region_end: u64,
    /// Start of the heap of brk(2).
    pub heap_start: u64,
    /// Its end.
    pub heap_end: u64,
    /// Start of the first thread's stack; 0 if there is none that grows.
    pub stack_start: u64,
    /// Its end.
    pub stack_end: u64,
    /// Bit number - 1 for each signal that a signalfd(2) reads.
    pub signals_of_fds: u64,
    /// Number of [`Vma`] that follow.
    pub vmas: u32,
    /// Number of [`Timer`] that follow.
    pub timers: u32,
    /// Number of [`Thread`] that follow.
    pub threads: u32,
    /// Bytes of each thread's extended state, which follow.
    pub extended_size: u32,
    /// Bytes of the auxiliary vector, which follows; 0 of a program that leaves.
    pub auxiliary_size: u32,
    /// Bytes of the path of the program's file, which follows last, likewise.
    pub path_size: u32,
    /// By signal number - 1.
    pub actions: [Action; SIGNALS],
}

/// `struct insula_lwk_running_vma`: a VMA, which is a base mapping at first.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Vma {
    /// Its first address.
    pub start: u64,
    /// Its end.
    pub end: u64,
    /// `PROT_READ` and so on.
    pub protection: u32,
    /// [`SHARED`] and so on.
    pub flags: u32,
}

/// `INSULA_LWK_RUNNING_SHARED`: others may share it.
pub const SHARED: u32 = 1;
/// `INSULA_LWK_RUNNING_DONT_FORK`: `MADV_DONTFORK`.
pub const DONT_FORK: u32 = 2;
/// `INSULA_LWK_RUNNING_WIPE_ON_FORK`: `MADV_WIPEONFORK`.
pub const WIPE_ON_FORK: u32 = 4;
/// `INSULA_LWK_RUNNING_DONT_DUMP`: `MADV_DONTDUMP`.
pub const DONT_DUMP: u32 = 8;
/// `INSULA_LWK_RUNNING_LOCKED`: locked, as by mlock(2).
pub const LOCKED: u32 = 16;

/// `struct insula_lwk_running_range`: a part of a VMA.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Range {
    /// Its first address.
    pub start: u64,
    /// Its end.
    pub end: u64,
}

/// `struct insula_lwk_running_timer`: a POSIX timer, which the base goes on to run.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Timer {
    /// Its id.
    pub id: u32,
    /// 1 if it signals a single thread, else 0.
    pub to_thread: u32,
}

/// `struct insula_lwk_running_thread`: a thread, whose thread of the proxy is attached to its slot.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[expect(missing_docs, reason = "most are the processor's names")]
pub struct Thread {
    /// Its id, in the process's pid namespace.
    pub id: u64,
    /// Its slot.
    pub slot: u64,
    /// Bit number - 1 for each blocked signal.
    pub blocked: u64,
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    /// As of set_tid_address(2); 0 for none.
    pub clear_child_tid: u64,
    /// As of set_robust_list(2); 0 for none.
    pub robust_list: u64,
    /// Size of its head.
    pub robust_list_size: u64,
    /// As of rseq(2); 0 for none.
    pub rseq: u64,
    /// Size of that area.
    pub rseq_size: u32,
    /// Signature before each abort handler.
    pub rseq_signature: u32,
    /// As of sigaltstack(2).
    pub stack_start: u64,
    /// Its size.
    pub stack_size: u64,
    /// Its flags.
    pub stack_flags: u64,
    /// Processor time so far; 0 of a program that leaves.
    pub cpu_time_ns: u64,
    /// Nice value.
    pub nice: i32,
    /// As of sched_setscheduler(2).
    pub policy: u32,
    /// Real-time priority.
    pub priority: u32,
    /// 0.
    pub reserved: u32,
}

//! Mirror of `include/insula_lwk.h`: delegation, by which the base executes the system calls of a
//! lightweight kernel's programs. The header's opening comment describes the protocol.
//!
//! These structures define the layout. Shared memory is never accessed by a reference to one: each
//! word there is an atomic.

mod idle;

pub use idle::CORE_IDLE;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_LWK_MAGIC`: "DELEGATE" in little endian, first word of [`Delegation`].
pub const LWK_MAGIC: u64 = 0x4554_4147_454c_4544;
/// `INSULA_LWK_REVISION`.
pub const LWK_REVISION: u32 = 12;

/// `INSULA_LWK_PAGES_MIN`: fewest pages of an area.
pub const PAGES_MIN: u32 = 64;
/// `INSULA_LWK_PAGES_MAX`: most pages of an area.
pub const PAGES_MAX: u32 = 16384;
/// `INSULA_LWK_SLOTS_PER_PAGE`: slots in a page.
pub const SLOTS_PER_PAGE: u32 = 16;
/// `INSULA_LWK_COUNTERS_PAGES`: pages after the first page: [`Counters`] of cores, and in the last
/// of them [`Calls`].
pub const COUNTERS_PAGES: u32 = 5;
/// `INSULA_LWK_CORES_PAGES`: pages after those, of [`Core`] for each core.
pub const CORES_PAGES: u32 = 8;
/// `INSULA_LWK_MAPS_PAGES`: pages after those, of [`Maps`].
pub const MAPS_PAGES: u32 = 25;
/// Number of the first page of [`Maps`].
pub const MAPS_PAGE: u32 = 1 + COUNTERS_PAGES + CORES_PAGES;
/// Number of the first page that is assigned to processes.
pub const PROCESS_PAGE: u32 = MAPS_PAGE + MAPS_PAGES;
/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;

/// `struct insula_lwk_clock`: the base's clocks at one reading of the time stamp counter.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Clock {
    /// Odd during an update.
    pub sequence: u64,
    /// Time stamp counter.
    pub tsc: u64,
    /// `CLOCK_REALTIME` then, in ns.
    pub realtime_ns: u64,
    /// `CLOCK_MONOTONIC` then, in ns.
    pub monotonic_ns: u64,
    /// Nanoseconds per tick, times 2^32.
    pub mult: u64,
    /// Sub-nanosecond part of both times, in ns times 2^32.
    pub fraction: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// `struct insula_lwk_delegation`: the first page of a delegation area.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Delegation {
    /// [`LWK_MAGIC`].
    pub magic: u64,
    /// [`LWK_REVISION`].
    pub revision: u32,
    /// Of the area, this one included.
    pub pages: u32,
    /// The base's doorbell, see [`DOORBELL_VALID`](crate::channel::DOORBELL_VALID).
    pub base_doorbell: u64,
    /// Zero.
    pub base_reserved: [u64; 5],
    /// For the programs' vDSO.
    pub clock: Clock,
    /// The LWK's doorbell; 0 until it accepts processes.
    pub lwk_doorbell: u64,
    /// Zero.
    pub lwk_reserved: [u64; 7],
    /// A bit for each word of [`Maps::wake_pending`].
    pub wake_summary: [u64; 64],
    /// A bit for each word of [`Maps::cancel_pending`].
    pub cancel_summary: [u64; 64],
    /// A bit for each word of [`Maps::process_pending`].
    pub process_summary: [u64; 4],
    /// Zero.
    pub reserved: [u64; 4],
}

/// `struct insula_lwk_maps`: what is pending of slots and processes, and who has the pages of the
/// area.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Maps {
    /// A bit for each slot, set by the LWK: wake its waiter.
    pub wake_pending: [u64; 4096],
    /// The same: cancel its call.
    pub cancel_pending: [u64; 4096],
    /// A bit for each page, set by the base: read this process's page.
    pub process_pending: [u64; 256],
    /// Zero.
    pub reserved: [u64; 256],
    /// Process that each page is assigned to, 0 if none. Written by the base.
    pub process_of: [u16; PAGES_MAX as usize],
}

/// `struct insula_lwk_counters`: counters of a core since its start.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Counters {
    /// System calls executed by the LWK.
    pub local_calls: u64,
    /// System calls executed by the base.
    pub delegated_calls: u64,
    /// Page faults of programs.
    pub faults: u64,
    /// Page faults of the base, resolved by the LWK.
    pub remote_faults: u64,
    /// Requests other than calls: threads, invalidations.
    pub requests: u64,
    /// Entries from programs into the kernel, for any reason.
    pub entries: u64,
    /// Switches from one thread to another.
    pub switches: u64,
    /// Rings of the base's doorbell.
    pub rings: u64,
}

/// `struct insula_lwk_calls`: how often programs have made each system call.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Calls {
    /// By number.
    pub made: [u64; 512],
}

/// `struct insula_lwk_core`: a core of an LWK, for base mappings.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Core {
    /// TLB flushes that the base has requested so far.
    pub flush_requests: u64,
    /// Zero.
    pub base_reserved: [u64; 7],
    /// Page table of the program that it runs; 0 for none.
    pub running: u64,
    /// Odd while the kernel accesses a page of a base mapping.
    pub accesses: u64,
    /// The last [`Core::flush_requests`] that it has obeyed.
    pub flushes_done: u64,
    /// The doorbell that interrupts the program; 0 while the core does not run.
    pub doorbell: u64,
    /// The time stamp counter when it last handled a doorbell.
    pub interrupted_at: u64,
    /// The time stamp counter when it came up; 0 if it never has.
    pub up_since: u64,
    /// For how long it has idled since then, in ticks of the time stamp counter; while it idles, with
    /// [`CORE_IDLE`], less the counter: who reads it adds that (modulo 2^62).
    pub idle_ticks: u64,
    /// Zero.
    pub lwk_reserved: u64,
}

/// `INSULA_LWK_PTE_BASE`: bit of an entry of a program's page table whose page is one of a base
/// mapping.
pub const PTE_BASE: u64 = 1 << 11;

/// `INSULA_LWK_ACCESS_WRITE`, of [`request::FAULT_IN`]: the page is written.
pub const ACCESS_WRITE: u64 = 1;
/// `INSULA_LWK_ACCESS_EXECUTE`, of [`request::FAULT_IN`]: its entries allow execution.
pub const ACCESS_EXECUTE: u64 = 2;

/// `enum insula_lwk_base_state`: state of a process as set by the base.
pub mod base_state {
    /// There is no process.
    pub const NONE: u64 = 0;
    /// Run the program.
    pub const STARTED: u64 = 1;
    /// The proxy exits.
    pub const EXITED: u64 = 2;
    /// The proxy's memory is gone.
    pub const UNMAPPED: u64 = 3;
    /// Nothing of the base maps or pins a page of the program.
    pub const QUIESCED: u64 = 4;
}

/// `enum insula_lwk_process_state`: state of a process as set by the LWK.
pub mod process_state {
    /// The LWK has not seen it yet.
    pub const UNKNOWN: u64 = 0;
    /// The LWK has seen it.
    pub const ALIVE: u64 = 1;
    /// [`QUIESCED`](super::base_state::QUIESCED) was set, and its memory is freed.
    pub const REAPED: u64 = 2;
    /// Its threads will not run any more.
    pub const STOPPED: u64 = 3;
}

/// `INSULA_LWK_QUEUE`: most queued signals of a process.
pub const QUEUE: usize = 32;

/// `struct insula_lwk_signal`: a signal to a program.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Signal {
    /// Its number.
    pub signal: i32,
    /// `si_errno`.
    pub error: i32,
    /// `si_code`.
    pub code: i32,
    /// Id of the proxy's thread that received it.
    pub thread: u32,
    /// `siginfo_t` from byte 16 on.
    pub fields: [u64; 4],
}

/// `INSULA_LWK_FAULTS`: most faults of a process at a time, on its memory.
pub const FAULTS: usize = 8;

/// `struct insula_lwk_fault`: a fault of a process, written by the base.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Fault {
    /// Faulting address.
    pub address: u64,
    /// 1 for a write, 0 for a read.
    pub access: u64,
    /// Number of the entry's last fault.
    pub sequence: u64,
    /// The last fault whose page was looked up after its answer.
    pub looked_up: u64,
}

/// `struct insula_lwk_fault_answer`: the answer to a [`Fault`], written by the LWK.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct FaultAnswer {
    /// 0, or negative errno if access is denied.
    pub error: u64,
    /// Number of the fault.
    pub sequence: u64,
}

/// `struct insula_lwk_process`: the first page of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Process {
    /// See [`base_state`].
    pub base_state: u64,
    /// Slot of the first thread.
    pub slot: u64,
    /// The program's process id.
    pub pid: u64,
    /// Start of the program's part of the address space.
    pub mirror_start: u64,
    /// Its end.
    pub mirror_end: u64,
    /// Bytes that [`request::ARGUMENTS`] copies.
    pub arguments_size: u64,
    /// Ticket of the last [`request::INVALIDATE`] done.
    pub invalidated: u64,
    /// Number of the mirror's descriptor in the proxy.
    pub descriptor: u64,
    /// Bit number - 1 for each signal dropped from the full queue.
    pub signals_overflow: u64,
    /// Process that this one was forked from; 0 for none.
    pub parent: u64,
    /// Address in the proxy at which slot 0 would lie.
    pub slots: u64,
    /// Bit number - 1 for each signal ignored at start.
    pub ignored: u64,
    /// The same for blocked signals.
    pub blocked: u64,
    /// Signals put into the queue so far.
    pub signals_queued: u64,
    /// 1 while the proxy is stopped, or about to be; else 0.
    pub stopped: u64,
    /// Where [`request::ARGUMENTS`] may copy the state of a running process, see
    /// [`running`](crate::running); 0: a program is to be loaded.
    pub running: u64,
    /// See [`process_state`].
    pub lwk_state: u64,
    /// Physical address of its level 4 page table; 0 while nothing is mapped.
    pub page_table: u64,
    /// Signals taken from the queue so far.
    pub signals_dequeued: u64,
    /// Address of the state of a program that leaves; 0 until it is there.
    pub left: u64,
    /// Size of it in bytes; 0 if the program cannot leave.
    pub left_size: u64,
    /// Zero.
    pub lwk_reserved: [u64; 3],
    /// Signal number n is at n modulo [`QUEUE`].
    pub queue: [Signal; QUEUE],
    /// Faults on its memory that have no slot.
    pub faults: [Fault; FAULTS],
    /// Their answers, by entry.
    pub answers: [FaultAnswer; FAULTS],
    /// Frames that were pinned at the last invalidation: if more than [`PINNED_MAX`], not all are
    /// listed.
    pub pinned_count: u64,
    /// 1 if the program is to leave the node.
    pub leave: u64,
    /// Zero.
    pub pinned_reserved: [u64; 6],
    /// Their physical addresses.
    pub pinned: [u64; PINNED_MAX],
}

/// `INSULA_LWK_PINNED_MAX`: most frames of a process reported as pinned.
pub const PINNED_MAX: usize = 240;

/// `INSULA_LWK_MAY_MAP_SHIFT`: a window's bit in [`MayMap`] is `address >> 21` modulo 32768.
pub const MAY_MAP_SHIFT: u32 = 21;

/// `struct insula_lwk_may_map`: the second page of a process, a bitmap of what the base may map.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct MayMap {
    /// A bit for each window of 2 MiB.
    pub windows: [u64; 512],
}

/// `struct insula_lwk_syscall_slot`: a ring of one entry between a thread and its proxy's thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SyscallSlot {
    /// Sequence number of the LWK's last call.
    pub sequence: u64,
    /// Number of a system call, or one of [`request`].
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// Sequence number of the answered call.
    pub answer_sequence: u64,
    /// [`ANSWER_RESULT`] or [`ANSWER_FAULT`].
    pub kind: u64,
    /// Result, negative errno included; or the address of a fault.
    pub result: u64,
    /// Second result, 0 or [`NOT_BEGUN`] of a system call; or 1 for a write fault, 0 for a read
    /// fault.
    pub value: u64,
    /// Zero.
    pub answer_reserved: [u64; 4],
    /// 1 while the proxy's thread sleeps.
    pub base_asleep: u64,
    /// 1 from a remote fault until the base has looked its page up again.
    pub faulting: u64,
    /// Zero.
    pub base_reserved: [u64; 3],
    /// 0, or the head of a list of robust futexes: first entry, offset of the futex in an entry, and
    /// the entry whose lock operation is pending.
    pub robust_list: [u64; 3],
    /// 0, or the doorbell that wakes the LWK's thread.
    pub lwk_asleep: u64,
    /// Arguments of the LWK's own calls that are passed in memory.
    pub scratch: [u64; 7],
}

/// `INSULA_LWK_RESULT`: the answer is the call's result.
pub const ANSWER_RESULT: u64 = 0;
/// `INSULA_LWK_FAULT`: the answer is a remote fault.
pub const ANSWER_FAULT: u64 = 1;
/// `INSULA_LWK_NOT_BEGUN`: second result of a system call that was cancelled before it began.
pub const NOT_BEGUN: u64 = 1;

/// Numbers of requests that are no system calls.
pub mod request {
    /// `INSULA_LWK_REQUEST`: bit that is set in all of them.
    pub const REQUEST: u64 = 1 << 32;
    /// `INSULA_LWK_RESOLVED`: a remote fault is resolved, or access is denied.
    pub const RESOLVED: u64 = REQUEST;
    /// `INSULA_LWK_ARGUMENTS`: copy the program's arguments to its memory.
    pub const ARGUMENTS: u64 = REQUEST | 1;
    /// `INSULA_LWK_THREAD`: create a thread.
    pub const THREAD: u64 = REQUEST | 2;
    /// `INSULA_LWK_THREAD_END`: this thread has exited.
    pub const THREAD_END: u64 = REQUEST | 3;
    /// `INSULA_LWK_EXIT`: make the proxy exit.
    pub const EXIT: u64 = REQUEST | 4;
    /// `INSULA_LWK_INVALIDATE`: invalidate a range.
    pub const INVALIDATE: u64 = REQUEST | 5;
    /// `INSULA_LWK_FORK`: fork.
    pub const FORK: u64 = REQUEST | 6;
    /// `INSULA_LWK_FAULT_IN`: fault in a page of a base mapping.
    pub const FAULT_IN: u64 = REQUEST | 7;
}

/// `INSULA_LWK_COPY_ON_WRITE`: bit of an entry for a page in a program's page table.
pub const COPY_ON_WRITE: u64 = 1 << 10;

/// `INSULA_LWK_INVALIDATE_NO_QUIESCE`, a flag of [`request::INVALIDATE`]: do not wait for I/O under
/// way.
pub const INVALIDATE_NO_QUIESCE: u64 = 1;
/// `INSULA_LWK_INVALIDATE_SHARED`, another: in all processes that share the memory.
pub const INVALIDATE_SHARED: u64 = 2;

/// `struct insula_delegation`: a delegation area to be laid out.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct DelegationPlace {
    /// Physical address, a multiple of 4096.
    pub start: u64,
    /// [`PAGES_MIN`] to [`PAGES_MAX`].
    pub pages: u32,
    /// Zero.
    pub reserved: u32,
}

/// `INSULA_MIRROR_SLOTS`: offset of slots in a mirror's descriptor.
pub const MIRROR_SLOTS: u64 = 1 << 47;
/// `INSULA_MIRROR_SLOTS_SIZE`: size of the mapping of all slots that an area can have, in bytes.
pub const MIRROR_SLOTS_SIZE: u64 = PAGES_MAX as u64 * PAGE_SIZE;
/// `INSULA_MIRROR_EXIT_SLOTS`: offset of the same slots as exiting threads find them.
pub const MIRROR_EXIT_SLOTS: u64 = MIRROR_SLOTS + MIRROR_SLOTS_SIZE;
/// `INSULA_MIRROR_CANCEL_SIGNAL`: signal by which the module cancels a call.
pub const MIRROR_CANCEL_SIGNAL: u32 = 33;

/// `struct insula_mirror_create`: an mm mirror to be created for the calling process.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MirrorCreate {
    /// In: start of the program's part of the address space.
    pub start: u64,
    /// In: its end. Both are multiples of 4096 below [`MIRROR_SLOTS`].
    pub end: u64,
    /// Out: the first thread's slot.
    pub slot: u32,
    /// [`MIRROR_FOR_OTHER`].
    pub flags: u32,
}

/// `INSULA_MIRROR_CREATE_FOR_OTHER`, a flag of [`MirrorCreate`]: the proxy will be the process that
/// calls `INSULA_MIRROR_ADOPT`.
pub const MIRROR_FOR_OTHER: u32 = 1;

/// `struct insula_mirror_start`: start the program.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MirrorStart {
    /// Bytes that [`request::ARGUMENTS`] copies.
    pub arguments_size: u64,
    /// Number of the mirror's descriptor in the proxy.
    pub descriptor: u64,
    /// Address at which the proxy has mapped [`MIRROR_SLOTS`].
    pub slots: u64,
    /// Bit number - 1 for each signal ignored at start.
    pub ignored: u64,
    /// The same for blocked signals.
    pub blocked: u64,
    /// See [`Process::running`].
    pub running: u64,
}

/// `struct insula_mirror_signal`: start of the `siginfo_t` of a signal to the program.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MirrorSignal {
    /// Its number.
    pub signal: i32,
    /// `si_errno`.
    pub error: i32,
    /// `si_code`.
    pub code: i32,
    /// Anything.
    pub padding: u32,
    /// What depends on the code.
    pub fields: [u64; 4],
}

/// `struct insula_mirror_fork`: an mm mirror created for a child of the program.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MirrorFork {
    /// Out: the first thread's slot.
    pub slot: u64,
    /// Out: the child's process.
    pub process: u64,
}

/// `struct insula_mirror_invalidate`: a range of the program's addresses to invalidate.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MirrorInvalidate {
    /// Its first address.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Value that the module writes to [`Process::invalidated`] when done.
    pub ticket: u64,
    /// [`INVALIDATE_NO_QUIESCE`], [`INVALIDATE_SHARED`].
    pub flags: u64,
}

/// `INSULA_MIRROR_MAP_KEEP`, a flag of [`MirrorMap`]: map the mirror only where nothing is mapped.
pub const MIRROR_MAP_KEEP: u64 = 1;

/// `struct insula_mirror_map`: a range of the proxy over which the mirror is mapped.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MirrorMap {
    /// Its first address.
    pub start: u64,
    /// Its end. Both are multiples of 4096.
    pub end: u64,
    /// [`MIRROR_MAP_KEEP`].
    pub flags: u64,
}

/// `INSULA_MIRROR_LEAVE_CANCEL`, a flag of [`MirrorLeave`]: the program goes on.
pub const MIRROR_LEAVE_CANCEL: u64 = 1;

/// `struct insula_mirror_leave`: the state of a program that leaves its node.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MirrorLeave {
    /// Out: its address.
    pub address: u64,
    /// Out: its size in bytes.
    pub size: u64,
    /// [`MIRROR_LEAVE_CANCEL`].
    pub flags: u64,
}

/// `struct insula_mirror_fault_in`: a page of a base mapping that is accessed.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MirrorFaultIn {
    /// An address in it.
    pub address: u64,
    /// [`ACCESS_WRITE`], [`ACCESS_EXECUTE`].
    pub access: u64,
    /// Process whose base mapping it is if the caller has none there.
    pub owner: u64,
}

//! Mirror of `include/insula_lwk.h`: delegation, by which the base executes the system calls of a
//! lightweight kernel's programs. The header's opening comment tells the protocol.
//!
//! These structures tell where words lie. No reference to one is made over shared memory: there
//! each word is an atomic of its own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_LWK_MAGIC`: "DELEGATE" in little endian, first word of [`Delegation`].
pub const LWK_MAGIC: u64 = 0x4554_4147_454c_4544;
/// `INSULA_LWK_REVISION`.
pub const LWK_REVISION: u32 = 6;

/// `INSULA_LWK_PAGES_MIN`: fewest pages of an area.
pub const PAGES_MIN: u32 = 16;
/// `INSULA_LWK_PAGES_MAX`: most pages of an area.
pub const PAGES_MAX: u32 = 512;
/// `INSULA_LWK_DESKS_PER_PAGE`: desks in a page.
pub const DESKS_PER_PAGE: u32 = 16;
/// `INSULA_LWK_COUNTERS_PAGES`: pages that count, behind the first page: [`Counters`] of cores, and in
/// the last of them [`Calls`].
pub const COUNTERS_PAGES: u32 = 5;
/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;

/// `struct insula_lwk_clock`: the base's clocks at one reading of the time stamp counter.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Clock {
    /// Odd while the others are being written.
    pub sequence: u64,
    /// Time stamp counter.
    pub tsc: u64,
    /// `CLOCK_REALTIME` then, in ns.
    pub realtime_ns: u64,
    /// `CLOCK_MONOTONIC` then, in ns.
    pub monotonic_ns: u64,
    /// Nanoseconds of a tick, times 2^32.
    pub mult: u64,
    /// What both times are later than that, in ns times 2^32: less than one.
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
    /// For the programs' clocks.
    pub clock: Clock,
    /// The kernel's doorbell; 0 until it takes processes.
    pub lwk_doorbell: u64,
    /// Zero.
    pub lwk_reserved: [u64; 7],
    /// A bit for each desk, set by the kernel: a turn for a thread that sleeps.
    pub rung: [u64; 128],
    /// The same: its call is to be broken off.
    pub interrupted: [u64; 128],
    /// A bit for each page, set by the base: look at this process.
    pub attention: [u64; 8],
    /// For each page the process that it is of, 0 if none.
    pub process_of: [u16; 512],
}

/// `struct insula_lwk_counters`: what a core has counted since its start.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Counters {
    /// System calls that the kernel executed.
    pub local_calls: u64,
    /// System calls that the base executed.
    pub delegated_calls: u64,
    /// Page faults of programs.
    pub faults: u64,
    /// Faults of the base, resolved here.
    pub questions: u64,
    /// Requests of the kernel's own: threads, releases.
    pub requests: u64,
    /// Entries to the kernel from programs, for whatever reason.
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
    /// By its number.
    pub made: [u64; 512],
}

/// `enum insula_lwk_base_state`: what the base says of a process.
pub mod base_state {
    /// There is none.
    pub const NONE: u64 = 0;
    /// The program is to be run.
    pub const BEGUN: u64 = 1;
    /// The proxy is no more.
    pub const ENDED: u64 = 2;
    /// Nor does anything of the base hold a page of the program's.
    pub const GONE: u64 = 3;
}

/// `enum insula_lwk_process_state`: what the kernel says of a process.
pub mod process_state {
    /// Nothing yet.
    pub const UNKNOWN: u64 = 0;
    /// It has been taken notice of.
    pub const ALIVE: u64 = 1;
    /// The base has said that it is gone, and all is freed.
    pub const DONE: u64 = 2;
}

/// `INSULA_LWK_QUEUE`: most signals of a process that wait to be taken.
pub const QUEUE: usize = 32;

/// `struct insula_lwk_signal`: a signal that came for a program.
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
    /// The proxy's thread that it came to.
    pub thread: u32,
    /// What follows in `siginfo_t`, from its byte 16 on.
    pub fields: [u64; 4],
}

/// `struct insula_lwk_process`: the first page of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Process {
    /// See [`base_state`].
    pub base_state: u64,
    /// Its first desk.
    pub desk: u64,
    /// The program's process id.
    pub pid: u64,
    /// Start of the program's part of the address space.
    pub space_start: u64,
    /// End of it.
    pub space_end: u64,
    /// Bytes that [`request::ARGUMENTS`] gives.
    pub arguments_size: u64,
    /// Ticket of the last [`request::RELEASE`] that was done.
    pub released: u64,
    /// The proxy's own descriptor, which is no file of the program's.
    pub descriptor: u64,
    /// Bit number - 1 for each signal for which there was no room in the queue.
    pub signals: u64,
    /// The process that this is a copy of; 0 if it begins with a program.
    pub parent: u64,
    /// Address at which desk 0 would lie in the proxy.
    pub desks: u64,
    /// Bit number - 1 for each signal that the program ignores at its beginning.
    pub ignored: u64,
    /// The same of those that it blocks.
    pub blocked: u64,
    /// Signals put into the queue until now.
    pub told: u64,
    /// 1 while the proxy is stopped, or about to be; or 0.
    pub stopped: u64,
    /// Zero.
    pub base_reserved: u64,
    /// See [`process_state`].
    pub lwk_state: u64,
    /// Physical address of its page table of level 4; 0 when nothing is mapped yet.
    pub page_table: u64,
    /// Signals taken out of the queue until now.
    pub taken: u64,
    /// Zero.
    pub lwk_reserved: [u64; 5],
    /// Signals that came: number n is at n modulo [`QUEUE`].
    pub queue: [Signal; QUEUE],
    /// How many frames were pinned at the last release: if more than [`PINNED_MAX`], not all are told.
    pub pinned_count: u64,
    /// Zero.
    pub pinned_reserved: [u64; 7],
    /// Their physical addresses.
    pub pinned: [u64; PINNED_MAX],
}

/// `INSULA_LWK_PINNED_MAX`: most frames of a process that are said to be pinned.
pub const PINNED_MAX: usize = 288;

/// `INSULA_LWK_REACH_SHIFT`: bit `address >> 21` modulo 32768 of [`Reach`] stands for a window.
pub const REACH_SHIFT: u32 = 21;

/// `struct insula_lwk_reach`: the second page of a process, what the base may have mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Reach {
    /// A bit for each window of 2 MiB.
    pub windows: [u64; 512],
}

/// `struct insula_lwk_desk`: where a thread of a program and a thread of its proxy meet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Desk {
    /// The kernel's turn.
    pub turn: u64,
    /// Number of a system call, or one of [`request`].
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// The turn that is answered.
    pub answer_turn: u64,
    /// [`ANSWER_RESULT`] or [`ANSWER_FAULT`].
    pub kind: u64,
    /// Result, negative errno included; or the address of a fault.
    pub result: u64,
    /// Second result; or 1 if the access writes, else 0.
    pub value: u64,
    /// Zero.
    pub answer_reserved: [u64; 4],
    /// 1 while the proxy's thread sleeps.
    pub base_asleep: u64,
    /// Zero.
    pub base_reserved: [u64; 7],
    /// 0, or the doorbell at which the kernel's thread is to be woken.
    pub lwk_asleep: u64,
    /// Arguments of calls that lie in memory, of the kernel's own.
    pub scratch: [u64; 7],
}

/// `INSULA_LWK_RESULT`: the answer is the result.
pub const ANSWER_RESULT: u64 = 0;
/// `INSULA_LWK_FAULT`: the answer is a question for a page.
pub const ANSWER_FAULT: u64 = 1;

/// Numbers of requests that are no system calls.
pub mod request {
    /// `INSULA_LWK_REQUEST`: they have this bit set.
    pub const REQUEST: u64 = 1 << 32;
    /// `INSULA_LWK_RESOLVED`: the page of a fault is there, or may not be accessed.
    pub const RESOLVED: u64 = REQUEST;
    /// `INSULA_LWK_ARGUMENTS`: copy what the program begins with.
    pub const ARGUMENTS: u64 = REQUEST | 1;
    /// `INSULA_LWK_THREAD`: make a thread.
    pub const THREAD: u64 = REQUEST | 2;
    /// `INSULA_LWK_THREAD_END`: this thread has ended.
    pub const THREAD_END: u64 = REQUEST | 3;
    /// `INSULA_LWK_EXIT`: end the proxy.
    pub const EXIT: u64 = REQUEST | 4;
    /// `INSULA_LWK_RELEASE`: let go of a range.
    pub const RELEASE: u64 = REQUEST | 5;
    /// `INSULA_LWK_FORK`: make a process that is a copy of this one.
    pub const FORK: u64 = REQUEST | 6;
}

/// `INSULA_LWK_RELEASE_MAPPED`, a flag of [`request::RELEASE`]: do not wait for I/O under way.
pub const RELEASE_MAPPED: u64 = 1;

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

/// `INSULA_SPACE_DESKS`: offset of desks in a space's descriptor.
pub const SPACE_DESKS: u64 = 1 << 47;
/// `INSULA_SPACE_INTERRUPT`: the signal by which a call is broken off.
pub const SPACE_INTERRUPT: u32 = 33;

/// `struct insula_space_create`: a space for the calling process.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct SpaceCreate {
    /// In: start of the program's part of the address space.
    pub start: u64,
    /// In: end of it. Both are multiples of 4096 below [`SPACE_DESKS`].
    pub end: u64,
    /// Out: the first thread's desk.
    pub desk: u32,
    /// Zero.
    pub flags: u32,
}

/// `struct insula_space_begin`: have the node run the program.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct SpaceBegin {
    /// Bytes that [`request::ARGUMENTS`] gives.
    pub arguments_size: u64,
    /// The number of the space's descriptor in the proxy.
    pub descriptor: u64,
    /// Address at which the proxy has mapped [`SPACE_DESKS`].
    pub desks: u64,
    /// Bit number - 1 for each signal that the program ignores at its beginning.
    pub ignored: u64,
    /// The same of those that it blocks.
    pub blocked: u64,
}

/// `struct insula_space_signal`: the beginning of the `siginfo_t` of a signal for the program.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct SpaceSignal {
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

/// `struct insula_space_fork`: a space for a copy of the program.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct SpaceFork {
    /// Out: the first thread's desk.
    pub desk: u64,
    /// Out: the copy's process.
    pub process: u64,
}

/// `struct insula_space_range`: a range of the program's addresses.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct SpaceRange {
    /// Its first address.
    pub start: u64,
    /// Its bytes.
    pub size: u64,
    /// What the module writes to [`Process::released`] when it is done.
    pub ticket: u64,
    /// [`RELEASE_MAPPED`].
    pub flags: u64,
}

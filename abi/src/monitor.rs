//! Mirror of `include/insula_monitor.h`, the memory of a confined node's monitor.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_MONITOR_MAGIC`: "MONITOR" in little endian.
pub const MONITOR_MAGIC: u64 = 0x52_4f54_494e_4f4d;
/// `INSULA_MONITOR_REVISION`: the revision that this crate mirrors.
pub const MONITOR_REVISION: u32 = 6;
/// `INSULA_MONITOR_CORE_SIZE`: bytes of each core's area.
pub const MONITOR_CORE_SIZE: u64 = 0x20000;
/// `INSULA_MONITOR_STATE`: offset, in a core's area, of the state of a paused core.
pub const MONITOR_STATE: u64 = 0x10000;
/// `INSULA_MONITOR_STATE_SIZE`: bytes for that.
pub const MONITOR_STATE_SIZE: u64 = 0x6000;
/// `INSULA_MONITOR_SHARED`: offset, in a core's area, of the page of a lightweight kernel that shares it.
pub const MONITOR_SHARED: u64 = 0x16000;
/// `INSULA_MONITOR_SHARED_CODE`: offset of the page with the code by which that kernel leaves.
pub const MONITOR_SHARED_CODE: u64 = 0x17000;
/// `INSULA_PAGE_WANTED`: a core waits for the page at the address with this bit.
pub const PAGE_WANTED: u64 = 1 << 0;
/// `INSULA_PAGE_NO_MEMORY`: there is no memory for it.
pub const PAGE_NO_MEMORY: u64 = 1 << 1;
/// `INSULA_PAGE_FOREIGN`: it is not the node's.
pub const PAGE_FOREIGN: u64 = 1 << 2;
/// `INSULA_MONITOR_DOORBELLS`: number of doorbells that a node may ring.
pub const MONITOR_DOORBELLS: usize = 65;
/// `INSULA_MONITOR_MESSAGE`: bytes of [`Monitor::message`].
pub const MONITOR_MESSAGE: usize = 256;
/// `INSULA_FUNCTION_CONFIG_WORDS`: words of a function's configuration space.
pub const FUNCTION_CONFIG_WORDS: usize = 64;
/// `INSULA_MONITOR_FUNCTIONS`: most PCI functions of a confined node.
pub const MONITOR_FUNCTIONS: usize = 8;
/// `INSULA_FUNCTION_MESSAGES`: most messages of each.
pub const FUNCTION_MESSAGES: u32 = 32;
/// `INSULA_EXITS`: length of [`MonitorCore::exits`].
pub const EXITS: usize = 8;
/// `INSULA_MONITOR_REGISTERS`: words of a `struct pt_regs`.
pub const MONITOR_REGISTERS: usize = 21;

/// `INSULA_MONITOR_REQUEST_INIT`: an INIT of the node's kernel.
pub const REQUEST_INIT: u64 = 1 << 0;
/// `INSULA_MONITOR_REQUEST_STARTUP`: a start-up IPI, its vector at [`STARTUP_SHIFT`].
pub const REQUEST_STARTUP: u64 = 1 << 1;
/// `INSULA_MONITOR_REQUEST_NMI`: an NMI of the node's kernel.
pub const REQUEST_NMI: u64 = 1 << 2;
/// `INSULA_MONITOR_REQUEST_FLUSH`: the nested page table has changed.
pub const REQUEST_FLUSH: u64 = 1 << 3;
/// `INSULA_MONITOR_REQUEST_STOP`: the node has ended.
pub const REQUEST_STOP: u64 = 1 << 4;
/// `INSULA_MONITOR_REQUEST_PAUSE`: the guest is executed no more, until it is resumed.
pub const REQUEST_PAUSE: u64 = 1 << 5;
/// `INSULA_MONITOR_REQUEST_RESUME`: a paused guest goes on.
pub const REQUEST_RESUME: u64 = 1 << 6;
/// `INSULA_MONITOR_REQUEST_SHARE`: look after the lightweight kernel that shares the core.
pub const REQUEST_SHARE: u64 = 1 << 7;
/// `INSULA_MONITOR_STARTUP_SHIFT`: place of a start-up IPI's vector in the requests.
pub const STARTUP_SHIFT: u32 = 56;

/// `enum insula_monitor_end`: what ended a confined node.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MonitorEnd(pub u32);

impl MonitorEnd {
    /// It has not ended.
    pub const RUNS: Self = Self(0);
    /// Reset by a port, or a triple fault.
    pub const RESET: Self = Self(1);
    /// Access to memory that is not the node's.
    pub const MEMORY: Self = Self(2);
    /// Access to an I/O port.
    pub const PORT: Self = Self(3);
    /// Write to a model-specific register.
    pub const MSR: Self = Self(4);
    /// Interrupt to a core that is not the node's.
    pub const INTERRUPT: Self = Self(5);
    /// Instruction reserved to the monitor.
    pub const INSTRUCTION: Self = Self(6);
    /// The monitor itself failed.
    pub const FAILED: Self = Self(7);
    /// There was no memory for a page that a copy of a node wrote.
    pub const NO_MEMORY: Self = Self(8);
}

/// `enum insula_monitor_exit`: cause of an exit, an index of [`MonitorCore::exits`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MonitorExit(pub u32);

impl MonitorExit {
    /// Requests, and NMIs of the base.
    pub const NMI: Self = Self(0);
    /// Model-specific registers other than the interrupt command register.
    pub const MSR: Self = Self(1);
    /// Interrupt command register: IPIs.
    pub const ICR: Self = Self(2);
    /// I/O ports.
    pub const PORT: Self = Self(3);
    /// CPUID.
    pub const CPUID: Self = Self(4);
    /// Nested page faults.
    pub const MEMORY: Self = Self(5);
    /// All else.
    pub const OTHER: Self = Self(6);
}

/// `struct insula_violation`: the event that ended a confined node.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Violation {
    /// Address, port, register, value of the interrupt command register, or exit code.
    pub subject: u64,
    /// Value that was to be written; of memory the fault's error code.
    pub value: u64,
    /// The guest's instruction, a linear address.
    pub rip: u64,
    /// Its CR3.
    pub page_table: u64,
}

/// `struct insula_monitor_function`: a PCI function of the node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct MonitorFunction {
    /// Bus, device and function, of 8, 5 and 3 bits, in segment 0.
    pub address: u32,
    /// Number of its messages, at most [`FUNCTION_MESSAGES`].
    pub messages_count: u32,
    /// Physical address of the page that the node has as the function's MSI-X table.
    pub messages: u64,
    /// What the node has as its configuration space.
    pub config: [u32; FUNCTION_CONFIG_WORDS],
    /// Bits that the node can change.
    pub writable: [u32; FUNCTION_CONFIG_WORDS],
}

/// `struct insula_message`: an entry of an MSI-X table.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Message {
    /// Low half of the address to write to.
    pub address: u32,
    /// High half.
    pub address_high: u32,
    /// What to write.
    pub data: u32,
    /// Bit 0: masked.
    pub control: u32,
}

/// `struct insula_monitor`: header of a monitor's memory. Addresses are physical.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Monitor {
    /// [`MONITOR_MAGIC`].
    pub magic: u64,
    /// [`MONITOR_REVISION`].
    pub revision: u32,
    /// Number of the node's cores.
    pub cores_count: u32,
    /// The first core's area; the others follow, [`MONITOR_CORE_SIZE`] bytes each.
    pub cores: u64,
    /// Root of the nested page table, of four levels.
    pub nested_page_table: u64,
    /// By the module: number of changes of entries that cores may remember, begun so far.
    pub nested_changes: u64,
    /// First instruction of the node's kernel.
    pub entry: u64,
    /// Its CR3.
    pub page_table: u64,
    /// Its RSI.
    pub argument: u64,
    /// By the monitor: what ended the node.
    pub ended: MonitorEnd,
    /// By the monitor: one more than the index of the core on which it ended.
    pub ended_core: u32,
    /// By the monitor: details.
    pub violation: Violation,
    /// The first [`MonitorFunction`].
    pub functions: u64,
    /// Number of the node's PCI functions.
    pub functions_count: u32,
    /// 0.
    pub reserved: u32,
    /// By the monitor: why it failed, zero-terminated.
    pub message: [u8; MONITOR_MESSAGE],
    /// By the module: the doorbells that the node may ring, as `INSULA_DOORBELL_*`.
    pub doorbells: [u64; MONITOR_DOORBELLS],
    /// By the module: the same, of requests for pages; 0 if the node is not a copy.
    pub page_doorbell: u64,
    /// 1: cores go on from the states in their areas.
    pub goes_on: u64,
    /// Added to the time stamp counter of such cores.
    pub tsc_offset: u64,
    /// Vector of an interrupt that the first of them gets as it goes on; 0: none.
    pub interrupt: u64,
}

/// `struct insula_monitor_share`: a lightweight kernel that shares a core of the node. Times are ticks of the
/// time stamp counter; `u64::MAX`: never.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MonitorShare {
    /// By the module: number of its start; 0: it is to run no more.
    pub open: u64,
    /// First instruction.
    pub entry: u64,
    /// CR3.
    pub page_table: u64,
    /// RSI.
    pub argument: u64,
    /// Address of the shared page there, in RDX.
    pub page: u64,
    /// Its bound is for each time as long as this,
    pub period: u64,
    /// and this long.
    pub budget: u64,
    /// By the module: the doorbell by which it is told of `wake_at`.
    pub doorbell: u64,
    /// When the module sends a request.
    pub armed: u64,
    /// By the monitor: when it wants one.
    pub wake_at: u64,
    /// By the monitor: when the kernel was first entered since its start; 0: not yet.
    pub entered: u64,
    /// By the monitor: 1 while it may be entered.
    pub runs: u64,
    /// By the monitor: number of times that it was entered.
    pub entries: u64,
    /// By the monitor: exit code of what ended it, if it was not itself.
    pub fault: u64,
}

/// `struct insula_monitor_core`: head of a core's area.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MonitorCore {
    /// Physical id of its local APIC.
    pub apic_id: u32,
    /// Its index in the node.
    pub index: u32,
    /// Virtual address of [`Monitor`].
    pub header: u64,
    /// By the module: the node has this core now; others are not interrupted.
    pub owned: u64,
    /// By the monitor: it executes the node's kernel; it does not wait for a start-up IPI.
    pub running: u64,
    /// `REQUEST_*`, set and taken atomically.
    pub requests: u64,
    /// By the monitor: number of [`REQUEST_FLUSH`] carried out.
    pub flushes: u64,
    /// By the monitor: number of exits by cause.
    pub exits: [u64; EXITS],
    /// By the monitor: number of interrupts to other kernels that ring no doorbell.
    pub dropped: u64,
    /// By the monitor: 1 while the guest is paused.
    pub paused: u64,
    /// By the monitor: registers of a paused guest, as a `struct pt_regs`.
    pub registers: [u64; MONITOR_REGISTERS],
    /// Id by which the node's kernel knows the core's local APIC.
    pub guest_apic_id: u64,
    /// By the monitor: an address with [`PAGE_WANTED`]; by the module: 0, or why not.
    pub page_request: u64,
    /// A lightweight kernel that shares the core.
    pub share: MonitorShare,
}

/// `INSULA_MONITOR_STATE_MAGIC`: "STATE" in little endian.
pub const MONITOR_STATE_MAGIC: u64 = 0x45_5441_5453;

/// `struct insula_monitor_state`: head of the state of a paused core.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MonitorState {
    /// [`MONITOR_STATE_MAGIC`]; else there is none.
    pub magic: u64,
    /// Time stamp counter, as the guest sees it.
    pub tsc: u64,
    /// As of [`MonitorCore`].
    pub running: u64,
    /// Not 0: it handles an interrupt, and cannot go on elsewhere.
    pub in_service: u64,
}

/// `struct insula_node_confine`: attaches a monitor to a node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeConfine {
    /// In: descriptor of the monitor's memory.
    pub memory: i32,
    /// 0.
    pub flags: u32,
    /// Offset of [`Monitor`] in the object.
    pub header: u64,
    /// First instruction of the monitor, in its page table.
    pub entry: u64,
    /// Physical address of its page table, which maps the trampoline page one to one.
    pub page_table: u64,
    /// RSI of core number `i`: `argument + i * MONITOR_CORE_SIZE`.
    pub argument: u64,
}

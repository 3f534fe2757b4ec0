//! Mirror of `include/insula_shared_core.h`: a core that the base shares with a lightweight kernel.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identifies the shared page.
pub const SHARED_CORE_MAGIC: u64 = 0x4552_4f43_4452_4853;
/// Revision of the protocol.
pub const SHARED_CORE_REVISION: u32 = 3;

/// The kernel leaves until it is rung, or its deadline.
pub const LEAVE_IDLE: u64 = 0;
/// It leaves because of an interrupt of the base.
pub const LEAVE_INTERRUPTED: u64 = 1;
/// It leaves because it has an earlier deadline.
pub const LEAVE_DEADLINE: u64 = 2;
/// It leaves for good.
pub const LEAVE_ENDED: u64 = 3;

/// `struct insula_shared_core`: the page by which the two kernels of a core share it.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct SharedCore {
    /// [`SHARED_CORE_MAGIC`].
    pub magic: u64,
    /// [`SHARED_CORE_REVISION`].
    pub revision: u32,
    /// Vector of the kernel's doorbells.
    pub vector: u32,
    /// Function that leaves the core to the base.
    pub leave: u64,
    /// Address of the page with its code, in both kernels.
    pub code: u64,
    /// Physical address of that page.
    pub code_frame: u64,
    /// Physical address of the shared page.
    pub frame: u64,
    /// Physical address of the page directory that maps both at first.
    pub directory: u64,
    /// When the base enters the kernel without being rung.
    pub armed: u64,
    /// 1: leave for good by the next NMI.
    pub abandon: u64,
    /// Vectors by which the base interrupts the kernel.
    pub pending: [u64; 4],
    /// Vectors of the base's interrupts that the kernel has taken.
    pub taken: [u64; 4],
    /// Non-maskable interrupts that it has taken.
    pub nmis: u64,
    /// Why it leaves: `LEAVE_*`.
    pub reason: u64,
    /// When it is to be entered.
    pub deadline: u64,
    /// 1: the base has interrupts off, and the kernel ends those that it takes.
    pub interrupts_off: u64,
    /// 1: no local APIC delivers the vector, and the kernel does not end it.
    pub virtual_vector: u64,
}

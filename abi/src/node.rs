//! Nodes: cores, their start and their end.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Name;

/// `struct insula_node_create`: cores to take for a node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeCreate {
    /// Its name.
    pub name: Name,
    /// In: address of bytes kept for the owner, opaque to the module.
    pub description: u64,
    /// Their number, at most [`crate::DESCRIPTION_MAX`].
    pub description_size: u32,
    /// Number of cores, at most [`crate::NODE_CPUS_MAX`].
    pub cpus_count: u32,
    /// In: address of an array of `u32` core numbers; the first boots.
    pub cpus: u64,
    /// Descriptor of its memory object.
    pub memory: i32,
    /// 0, or the share of the core's time, in percent, that it gets at most: the base has the core
    /// as well.
    pub core_share: u16,
    /// How the node's kernel is entered on that core.
    pub share_by: ShareBy,
}

/// How a lightweight kernel is entered on a core that it shares with another kernel.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct ShareBy(pub u16);

impl ShareBy {
    /// By interrupts.
    pub const INTERRUPT: Self = Self(0);
    /// By non-maskable interrupts, also while the base has interrupts off.
    pub const NMI: Self = Self(1);
    /// By the monitor of the confined node that has the core.
    pub const VMM: Self = Self(2);
}

/// `struct insula_node_start`: initial state of the first core in 64-bit mode. Physical addresses.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct NodeStart {
    /// First instruction.
    pub entry: u64,
    /// CR3; must map `entry` and the trampoline page one to one.
    pub page_table: u64,
    /// RSI.
    pub argument: u64,
    /// Byte that the node sets to power off.
    pub power_off: u64,
    /// Byte that it sets to request a reset.
    pub reset: u64,
}

/// `enum insula_state`: the states of OCI's runtime specification.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct State(pub u32);

impl State {
    /// Being assembled, belongs to a descriptor.
    pub const CREATING: Self = Self(0);
    /// Its first core is being started.
    pub const CREATED: Self = Self(1);
    /// Its cores execute it.
    pub const RUNNING: Self = Self(2);
    /// Its cores are returned or kept for it; its memory stays readable.
    pub const STOPPED: Self = Self(3);
}

/// `enum insula_reason`: why a node is stopped.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Reason(pub u32);

impl Reason {
    /// It is not stopped.
    pub const NONE: Self = Self(0);
    /// It powered off.
    pub const POWER_OFF: Self = Self(1);
    /// It requested a reset.
    pub const RESET: Self = Self(2);
    /// Stopped by the user.
    pub const STOPPED: Self = Self(3);
    /// Killed by the user.
    pub const KILLED: Self = Self(4);
    /// Its kernel crashed; stopped by its supervisor.
    pub const CRASHED: Self = Self(5);
    /// The base went down.
    pub const BASE: Self = Self(6);
    /// Its kernel halted; stopped by its supervisor.
    pub const HALTED: Self = Self(7);
    /// It was unresponsive; stopped by its supervisor.
    pub const HUNG: Self = Self(8);
    /// The base lost one of its devices.
    pub const DEVICE_LOST: Self = Self(9);
    /// It was confined, and used what is not its own.
    pub const VIOLATION: Self = Self(10);
    /// Its watcher found a fault; stopped by its supervisor.
    pub const FINDING: Self = Self(11);

    /// Its bit in [`NodeSupervise::keep_cpus`]; none for a reason unknown to this revision.
    #[must_use]
    pub const fn bit(self) -> u32 {
        match 1_u32.checked_shl(self.0) {
            Some(bit) => bit,
            None => 0,
        }
    }
}

/// `INSULA_NODE_SUPERVISED`, a flag of [`NodeInfo::flags`]: a descriptor supervises it.
pub const NODE_SUPERVISED: u32 = 1 << 0;
/// `INSULA_NODE_CPUS_KEPT`, a flag of [`NodeInfo::flags`]: stopped, and its cores kept for it.
pub const NODE_CPUS_KEPT: u32 = 1 << 1;
/// `INSULA_NODE_RETIRED`, a flag of [`NodeInfo::flags`]: its (next) end is final, no restart.
pub const NODE_RETIRED: u32 = 1 << 2;
/// `INSULA_NODE_UNRESPONSIVE`, a flag of [`NodeInfo::flags`] and [`NodeSupervise::flags`]: running,
/// but fails its health probe.
pub const NODE_UNRESPONSIVE: u32 = 1 << 3;
/// `INSULA_NODE_CONFINED`, a flag of [`NodeInfo::flags`]: by a monitor.
pub const NODE_CONFINED: u32 = 1 << 4;
/// `INSULA_NODE_PAUSED`, a flag of [`NodeInfo::flags`]: running, but its cores are paused.
pub const NODE_PAUSED: u32 = 1 << 5;

/// `struct insula_node_info`: state of a node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeInfo {
    /// Its name.
    pub name: Name,
    /// Its id, never 0.
    pub id: u32,
    /// Its state.
    pub state: State,
    /// Why it is stopped.
    pub reason: Reason,
    /// Number of its cores or, if stopped, of those that it had.
    pub cpus_count: u32,
    /// In: address of an array of [`crate::Cpu`] to fill, or 0.
    pub cpus: u64,
    /// In: its length.
    pub cpus_capacity: u32,
    /// `NODE_*`.
    pub flags: u32,
    /// Bytes of its memory object.
    pub memory_size: u64,
    /// Number of times it was started.
    pub starts: u64,
    /// `CLOCK_BOOTTIME` of the last start in ns, 0 if not started.
    pub started_ns: u64,
    /// `CLOCK_BOOTTIME` of the end in ns, 0 if not ended.
    pub ended_ns: u64,
    /// Time stamp counter on entering `INSULA_NODE_START`.
    pub start_tsc: u64,
    /// Time stamp counter on the node's core, just before its first instruction.
    pub entry_tsc: u64,
    /// [`NodeStart::power_off`].
    pub power_off: u64,
    /// [`NodeStart::reset`].
    pub reset: u64,
    /// Physical address of [`crate::monitor::Monitor`]; 0 if it is not confined.
    pub monitor: u64,
}

impl Default for NodeInfo {
    /// All zero, to be filled in by the module.
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// `struct insula_node_stop`: stop its cores at once.
///
/// [`Reason::STOPPED`] and [`Reason::KILLED`] retire the node; for the other reasons its cores may
/// be kept for its next start.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeStop {
    /// [`Reason::STOPPED`], [`Reason::KILLED`], [`Reason::CRASHED`], [`Reason::HALTED`]
    /// [`Reason::HUNG`] or [`Reason::DEVICE_LOST`].
    pub reason: Reason,
    /// Zero.
    pub reserved: u32,
}

/// `INSULA_VECTOR_NMI`: the processor's exception vector of NMIs.
pub const VECTOR_NMI: u32 = 2;

/// `struct insula_node_interrupt`: an interrupt to send to one of a node's cores.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeInterrupt {
    /// Index of the core in the node, 0 for the first.
    pub index: u32,
    /// Interrupt vector, 32 to 255, or [`VECTOR_NMI`].
    pub vector: u32,
}

/// `struct insula_node_supervise`: for which reasons a stopped node keeps its cores.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeSupervise {
    /// A bit, [`Reason::bit`], for each reason; of [`Reason::POWER_OFF`], [`Reason::RESET`],
    /// [`Reason::CRASHED`], [`Reason::HALTED`], [`Reason::HUNG`] and [`Reason::DEVICE_LOST`].
    pub keep_cpus: u32,
    /// [`NODE_UNRESPONSIVE`], as long as it is.
    pub flags: u32,
}

/// `INSULA_RECREATE_UNLESS_RETIRED`, a flag of [`NodeRecreate::flags`]: fail with `ECANCELED` if
/// the node is retired.
pub const RECREATE_UNLESS_RETIRED: u32 = 1 << 0;

/// `struct insula_node_recreate`: reassemble a stopped node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeRecreate {
    /// In: address of bytes kept for the owner, opaque to the module.
    pub description: u64,
    /// Their number, at most [`crate::DESCRIPTION_MAX`].
    pub description_size: u32,
    /// `RECREATE_*`.
    pub flags: u32,
}

/// `struct insula_node_grow`: cores and memory to add to a running node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeGrow {
    /// In: address of an array of core numbers, `u32` each.
    pub cpus: u64,
    /// In: its length.
    pub cpus_count: u32,
    /// In: descriptor of an unclaimed memory object, or -1.
    pub memory: i32,
}

/// `struct insula_node_share`: memory that several nodes share.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeShare {
    /// In: descriptor of the memory object.
    pub memory: i32,
    /// 0.
    pub flags: u32,
}

/// `struct insula_node_shrink`: cores and memory to remove from a running node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeShrink {
    /// In: address of an array of core numbers, `u32` each.
    pub cpus: u64,
    /// In: its length.
    pub cpus_count: u32,
    /// In: number of chunks to remove from the end of its memory.
    pub chunks: u32,
}

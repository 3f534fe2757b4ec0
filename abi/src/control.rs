//! The control descriptor: revision, machine, pool, images, lists.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{MAGIC, Name, REVISION, Request};

/// `INSULA_MACHINE_X2APIC`, a flag of [`Machine::flags`]: the local APICs are in x2APIC mode.
pub const MACHINE_X2APIC: u32 = 1 << 0;
/// `INSULA_MACHINE_VIRTUALIZES`, a flag of [`Machine::flags`]: nodes can be confined
/// ([`crate::monitor::NodeConfine`]).
pub const MACHINE_VIRTUALIZES: u32 = 1 << 1;
/// `INSULA_MACHINE_VMX`, a flag of [`Machine::flags`]: they are confined by Intel's VMX, else by AMD's SVM.
pub const MACHINE_VMX: u32 = 1 << 2;

/// `struct insula_hello`: both sides agree on a revision.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: u64,
    /// In: the caller's revision. Out: the module's.
    pub revision: u32,
    /// Zero.
    pub reserved: u32,
}

impl Default for Hello {
    /// The greeting of this crate's revision.
    fn default() -> Self {
        Self {
            magic: MAGIC,
            revision: REVISION,
            reserved: 0,
        }
    }
}

/// `enum insula_cpu_owner`: owner of a core.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct CpuOwner(pub u32);

impl CpuOwner {
    /// The base, which has it online or offline.
    pub const BASE: Self = Self(0);
    /// Taken, and free for a node.
    pub const POOL: Self = Self(1);
    /// A node.
    pub const NODE: Self = Self(2);
    /// The base, which shares it with a node.
    pub const SHARED: Self = Self(3);
}

/// `struct insula_cpu`: a core and its owner.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Cpu {
    /// The base's number for it.
    pub cpu: u32,
    /// Physical id of its local APIC.
    pub apic_id: u32,
    /// Its owner.
    pub owner: CpuOwner,
    /// Id of the node that owns it, else 0.
    pub node: u32,
}

/// `struct insula_machine`: resources of the machine, and those that the module has taken. Sizes in
/// bytes.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Machine {
    /// In: address of an array of [`Cpu`] to fill, or 0.
    pub cpus: u64,
    /// In: its length.
    pub cpus_capacity: u32,
    /// Out: number of cores.
    pub cpus_count: u32,
    /// Out: `MACHINE_*`.
    pub flags: u32,
    /// Out: frequency of the time stamp counter in kHz.
    pub tsc_khz: u32,
    /// Out: page below 1 MiB that a start maps one to one.
    pub trampoline: u64,
    /// Out: memory below 1 MiB available to nodes.
    pub lowmem_total: u64,
    /// Out: of that, not taken.
    pub lowmem_free: u64,
    /// Out: memory in the pool, used or not.
    pub pool_total: u64,
    /// Out: of that, not used by an object.
    pub pool_free: u64,
    /// Out: memory of all objects, except that of the pool.
    pub allocated: u64,
    /// Out: unused memory, kept until I/O on it has ended.
    pub quarantined: u64,
}

/// `struct insula_pool`: cores and memory to take ahead of need.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Pool {
    /// In: address of an array of `u32` core numbers.
    pub cpus: u64,
    /// Its length.
    pub cpus_count: u32,
    /// Zero.
    pub reserved: u32,
    /// Memory to take; size 0 for none.
    pub memory: Request,
}

/// `struct insula_image`: a memory object to keep under a name.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Image {
    /// Its name.
    pub name: Name,
    /// In: address of bytes kept for the owner, opaque to the module.
    pub description: u64,
    /// Their number, at most [`crate::DESCRIPTION_MAX`].
    pub description_size: u32,
    /// Descriptor of the memory object.
    pub memory: i32,
}

/// `struct insula_names`: the names of all images or nodes, oldest first.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Names {
    /// In: address of an array of [`Name`] to fill, or 0.
    pub names: u64,
    /// In: its length.
    pub capacity: u32,
    /// Out: number of names.
    pub count: u32,
}

/// `struct insula_description`: the bytes kept for the owner of an image or a node.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Description {
    /// In: address of a buffer to fill, or 0.
    pub bytes: u64,
    /// In: its size.
    pub capacity: u32,
    /// Out: number of bytes.
    pub size: u32,
}

//! Mirror of `include/insula_channel.h`: rings, channels and doorbells in memory that two kernels
//! share.
//!
//! These structures tell where words lie. No reference to one is made over shared memory: there
//! each word is an atomic of its own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_CHANNEL_MAGIC`: "CHANNEL" in little endian, first word of [`AreaHeader`].
pub const CHANNEL_MAGIC: u64 = 0x4c_454e_4e41_4843;
/// `INSULA_CHANNEL_REVISION`.
pub const CHANNEL_REVISION: u32 = 1;

/// `struct insula_slot`: a slot of a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Slot {
    /// Turn, size, pages and kind: see `HEADER_*`.
    pub header: u64,
    /// Bytes of the message.
    pub words: [u64; 7],
}

/// `INSULA_SLOT_BYTES`: bytes of a message in each slot.
pub const SLOT_BYTES: usize = 56;
/// `INSULA_SLOTS_MIN`: fewest slots of a channel's ring; their number is a power of two.
pub const SLOTS_MIN: u32 = 64;
/// `INSULA_SLOTS_MAX`: most slots of a ring.
pub const SLOTS_MAX: u32 = 32768;
/// `INSULA_HEADER_TURN_MASK`: the bits of a header that hold its slot's turn.
pub const HEADER_TURN_MASK: u64 = 0xffff_ffff;
/// `INSULA_HEADER_SIZE_SHIFT`: where the 16 bits of a message's size begin.
pub const HEADER_SIZE_SHIFT: u32 = 32;
/// `INSULA_HEADER_PAGES_SHIFT`: where the 8 bits of its number of page references begin.
pub const HEADER_PAGES_SHIFT: u32 = 48;
/// `INSULA_HEADER_KIND_SHIFT`: where the 8 bits of its kind begin.
pub const HEADER_KIND_SHIFT: u32 = 56;

/// `enum insula_right`: what the receiver of a page reference may do.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Right(pub u32);

impl Right {
    /// Use the pages until they are taken back.
    pub const GRANTED: Self = Self(1);
    /// Use them until the answer to the message.
    pub const LENT: Self = Self(2);
    /// Keep them.
    pub const MOVED: Self = Self(3);
}

/// `struct insula_pages`: a page reference, contiguous pages of 4096 bytes.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Pages {
    /// Physical address of the first.
    pub start: u64,
    /// How many.
    pub count: u32,
    /// What may be done with them.
    pub right: Right,
}

/// `struct insula_ring`: a ring's control words, a cache line of the consumer and one of the
/// producers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Ring {
    /// Position of the next slot to be received, 32 bits.
    pub head: u64,
    /// 0, or [`WAKE_ASLEEP`] and the position at which the consumer stands.
    pub consumer_wake: u64,
    /// Zero.
    pub consumer_reserved: [u64; 6],
    /// The same of a producer in want of room.
    pub producer_wake: u64,
    /// Zero.
    pub producer_reserved: [u64; 7],
}

/// `INSULA_WAKE_ASLEEP`: mark of a wake word whose writer sleeps; bits 0 to 31 are its position.
pub const WAKE_ASLEEP: u64 = 1 << 32;

/// `struct insula_end`: one side of a channel, written by its own kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct End {
    /// 0, or see [`DOORBELL_VALID`].
    pub doorbell: u64,
    /// The last session that it has been in.
    pub session: u64,
    /// 1 while it is in it.
    pub open: u64,
    /// Zero.
    pub reserved: [u64; 5],
}

/// `INSULA_DOORBELL_VALID`: mark of a doorbell word.
pub const DOORBELL_VALID: u64 = 1 << 48;
/// `INSULA_DOORBELL_APIC_SHIFT`: where the 32 bits of its local APIC's id begin.
pub const DOORBELL_APIC_SHIFT: u32 = 8;
/// `INSULA_DOORBELL_VECTOR_MASK`: the bits that hold its interrupt vector.
pub const DOORBELL_VECTOR_MASK: u64 = 0xff;

/// `struct insula_events`: what one side has signalled to the other, a bit for each event.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Events {
    /// Those that the other side has not taken yet.
    pub pending: u64,
    /// Zero.
    pub reserved: [u64; 7],
}

/// `INSULA_EVENTS`: events of each side of a channel.
pub const EVENTS: u32 = 64;

/// `struct insula_ends`: the first page of a channel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Ends {
    /// The base's.
    pub base: End,
    /// The node's.
    pub node: End,
    /// The node's events for the base.
    pub to_base: Events,
    /// The base's events for the node.
    pub to_node: Events,
}

/// `INSULA_CHANNEL_RINGS`: offset of a channel's rings, which processes map, in bytes.
pub const CHANNEL_RINGS: u64 = 4096;

/// `struct insula_rings`: the control words of a channel's rings.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Rings {
    /// To the node.
    pub to_node: Ring,
    /// To the base.
    pub to_base: Ring,
}

/// `INSULA_RINGS_SLOTS`: offset of the slots from the control words, in bytes; first those of the
/// ring to the node.
pub const RINGS_SLOTS: u64 = 4096;

/// `INSULA_RINGS_SIZE`: bytes of a channel's rings of that many slots.
#[must_use]
pub const fn rings_size(slots: u32) -> u64 {
    RINGS_SLOTS + 2 * size_of::<Slot>() as u64 * slots as u64
}

/// `INSULA_CHANNEL_SIZE`: bytes of a channel.
#[must_use]
pub const fn channel_size(slots: u32) -> u64 {
    CHANNEL_RINGS + rings_size(slots)
}

/// `struct insula_area_header`: the first page of a node's channels, which ACPI device `INSU0001` names.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct AreaHeader {
    /// [`CHANNEL_MAGIC`].
    pub magic: u64,
    /// [`CHANNEL_REVISION`].
    pub revision: u32,
    /// Of channels.
    pub count: u32,
    /// Of each ring.
    pub slots: u32,
    /// `AREA_*`: what the node's kernel tells of itself.
    pub node: u32,
}

/// `INSULA_AREA_ENDS_BY_CALL`: to reset the machine it calls who has launched it, so that the base need
/// not be quick to see it.
pub const AREA_ENDS_BY_CALL: u32 = 1 << 0;

/// `INSULA_CHANNEL_ORDERS`: index of the channel of [`order`](crate::order). Those before are the
/// programs'.
pub const CHANNEL_ORDERS: u32 = 8;
/// `INSULA_CHANNEL_VIRTIO`: index of the channel of [`virtio`](crate::virtio).
pub const CHANNEL_VIRTIO: u32 = 9;
/// `INSULA_CHANNEL_FRAMES`: index of the channel of [`frames`](crate::frames).
pub const CHANNEL_FRAMES: u32 = 10;

/// `INSULA_CHANNELS_MAX`: most channels in one area.
pub const CHANNELS_MAX: u32 = 64;

/// `INSULA_AREA_SIZE`: bytes of an area.
#[must_use]
pub const fn area_size(count: u32, slots: u32) -> u64 {
    4096 + count as u64 * channel_size(slots)
}

/// `struct insula_channels`: channels of a node to be laid out.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Channels {
    /// Physical address of their area, a multiple of 4096.
    pub start: u64,
    /// How many, 1 to [`CHANNELS_MAX`].
    pub count: u32,
    /// Slots of each ring, a power of two from [`SLOTS_MIN`] to [`SLOTS_MAX`].
    pub slots: u32,
}

/// `struct insula_channel_open`: a channel whose end is to be opened.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct ChannelOpen {
    /// In: which of the node's.
    pub index: u32,
    /// Out: slots of each ring.
    pub slots: u32,
}

/// `struct insula_channel_event`: an event of a channel to be bound to eventfds, -1 for none.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct ChannelEvent {
    /// Which, below [`EVENTS`].
    pub event: u32,
    /// Descriptor of what is written to when the peer signals it.
    pub incoming: i32,
    /// Descriptor of what signals it to the peer when it is written to.
    pub outgoing: i32,
    /// Zero.
    pub reserved: u32,
}

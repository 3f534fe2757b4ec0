//! Mirror of `include/insula_channel.h`: rings, channels and doorbells in memory that two kernels
//! share.
//!
//! These structures define the layout. Shared memory is never accessed by a reference to one: each
//! word there is an atomic.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_CHANNEL_MAGIC`: "CHANNEL" in little endian, first word of [`AreaHeader`].
pub const CHANNEL_MAGIC: u64 = 0x4c_454e_4e41_4843;
/// `INSULA_CHANNEL_REVISION`.
pub const CHANNEL_REVISION: u32 = 1;

/// `struct insula_slot`: a slot of a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Slot {
    /// Sequence number, size, pages and kind: see `HEADER_*`.
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
/// `INSULA_HEADER_SEQUENCE_MASK`: the bits of a header that hold its slot's sequence number.
pub const HEADER_SEQUENCE_MASK: u64 = 0xffff_ffff;
/// `INSULA_HEADER_SIZE_SHIFT`: lowest of the 16 bits of a message's size.
pub const HEADER_SIZE_SHIFT: u32 = 32;
/// `INSULA_HEADER_PAGES_SHIFT`: lowest of the 8 bits of its number of page references.
pub const HEADER_PAGES_SHIFT: u32 = 48;
/// `INSULA_HEADER_KIND_SHIFT`: lowest of the 8 bits of its kind.
pub const HEADER_KIND_SHIFT: u32 = 56;

/// `enum insula_right`: rights of the receiver of a page reference.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Right(pub u32);

impl Right {
    /// Use the pages until they are revoked.
    pub const GRANTED: Self = Self(1);
    /// Use them until the reply to the message.
    pub const UNTIL_REPLY: Self = Self(2);
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
    /// Number of pages.
    pub count: u32,
    /// Rights of the receiver.
    pub right: Right,
}

/// `struct insula_ring`: a ring's control words, a cache line of the consumer and one of the
/// producers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Ring {
    /// Position of the next slot to receive, 32 bits.
    pub head: u64,
    /// 0, or [`WAKE_ASLEEP`] and the position at which the consumer waits.
    pub consumer_wake: u64,
    /// Zero.
    pub consumer_reserved: [u64; 6],
    /// The same of a producer that waits for room.
    pub producer_wake: u64,
    /// Zero.
    pub producer_reserved: [u64; 7],
}

/// `INSULA_WAKE_ASLEEP`: flag of a wake word whose writer sleeps; bits 0 to 31 are its position.
pub const WAKE_ASLEEP: u64 = 1 << 32;

/// `struct insula_endpoint_state`: state of an endpoint of a channel, written by its own kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct EndpointState {
    /// 0, or see [`DOORBELL_VALID`].
    pub doorbell: u64,
    /// The last session that it joined.
    pub session: u64,
    /// 1 while it is in that session.
    pub open: u64,
    /// Zero.
    pub reserved: [u64; 5],
}

/// `INSULA_DOORBELL_VALID`: flag of a doorbell word.
pub const DOORBELL_VALID: u64 = 1 << 48;
/// `INSULA_DOORBELL_APIC_SHIFT`: lowest of the 32 bits of its local APIC's id.
pub const DOORBELL_APIC_SHIFT: u32 = 8;
/// `INSULA_DOORBELL_FOREIGN`: set in the APIC id of a doorbell that a copy of a node is told; alone, before
/// the base has begun a session with the copy.
pub const DOORBELL_FOREIGN: u64 = 1 << (8 + 31);
/// `INSULA_DOORBELL_VECTOR_MASK`: the bits that hold its interrupt vector.
pub const DOORBELL_VECTOR_MASK: u64 = 0xff;

/// `struct insula_events`: pending events from one side to the other, as bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Events {
    /// Signalled and not yet taken by the other side.
    pub pending: u64,
    /// Zero.
    pub reserved: [u64; 7],
}

/// `INSULA_EVENTS`: events of each side of a channel.
pub const EVENTS: u32 = 64;

/// `struct insula_endpoints`: the first page of a channel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Endpoints {
    /// The base's.
    pub base: EndpointState,
    /// The node's.
    pub node: EndpointState,
    /// Events from the node to the base.
    pub to_base: Events,
    /// Events from the base to the node.
    pub to_node: Events,
}

/// `INSULA_CHANNEL_RINGS`: offset in bytes of a channel's rings, the part that processes map.
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

/// `struct insula_area_header`: first page of a node's channel area, described by ACPI device
/// `INSU0001`.
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
    /// `AREA_*`: flags set by the node's kernel.
    pub node: u32,
}

/// `INSULA_AREA_RESETS_BY_CALL`: the node's kernel resets the machine by a call that does not
/// return, so the base may poll for its end less often.
pub const AREA_RESETS_BY_CALL: u32 = 1 << 0;

/// `INSULA_CHANNEL_HOTPLUG`: index of the channel of [`hotplug`](crate::hotplug). Lower ones are
/// free for programs.
pub const CHANNEL_HOTPLUG: u32 = 8;
/// `INSULA_CHANNEL_VIRTIO`: index of the channel of [`virtio`](crate::virtio).
pub const CHANNEL_VIRTIO: u32 = 9;
/// `INSULA_CHANNEL_GRANTS`: index of the channel of [`grant`](crate::grant).
pub const CHANNEL_GRANTS: u32 = 10;

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
    /// Number of channels, 1 to [`CHANNELS_MAX`].
    pub count: u32,
    /// Slots of each ring, a power of two from [`SLOTS_MIN`] to [`SLOTS_MAX`].
    pub slots: u32,
}

/// `struct insula_channel_open`: a channel whose endpoint is to be opened.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct ChannelOpen {
    /// In: index of the channel in the node.
    pub index: u32,
    /// Out: slots of each ring.
    pub slots: u32,
}

/// `struct insula_channel_eventfd`: an event of a channel to be bound to eventfds, -1 for none.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct ChannelEventfd {
    /// Number of the event, below [`EVENTS`].
    pub event: u32,
    /// Eventfd that is written when the peer signals the event.
    pub ioeventfd: i32,
    /// Eventfd that signals the event to the peer when it is written.
    pub irqfd: i32,
    /// Zero.
    pub reserved: u32,
}

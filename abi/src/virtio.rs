//! Mirror of `include/insula_virtio.h`: messages of the virtio-msg draft between a virtio driver in
//! a node and a device on the base.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_VIRTIO_MESSAGE_MAX`: longest message, header included, in bytes.
pub const MESSAGE_MAX: usize = 512;
/// `INSULA_VIRTIO_CONFIG_MAX`: most configuration bytes in one message.
pub const CONFIG_MAX: usize = 256;
/// `INSULA_VIRTIO_DEVICES_MAX`: most devices of a node.
pub const DEVICES_MAX: u16 = 32;
/// `INSULA_VIRTIO_QUEUES_MAX`: most virtqueues of a device.
pub const QUEUES_MAX: u32 = 16;
/// `INSULA_VIRTIO_EVENTS_MAX`: event bits of a channel that its virtqueues share.
pub const EVENTS_MAX: u32 = 63;

/// `INSULA_VIRTIO_RESPONSE`: flag of an answer, in [`Header::kind`].
pub const RESPONSE: u8 = 1 << 0;
/// `INSULA_VIRTIO_BUS`: flag of a message of the bus, in [`Header::kind`].
pub const BUS: u8 = 1 << 1;

/// Ids of messages of the bus.
pub mod bus {
    /// `INSULA_VIRTIO_GET_DEVICES`: list the devices.
    pub const GET_DEVICES: u8 = 0x02;
    /// `INSULA_VIRTIO_PING`: check that the other side answers.
    pub const PING: u8 = 0x03;
    /// `INSULA_VIRTIO_EVENT_DEVICE`: a device was added or removed.
    pub const EVENT_DEVICE: u8 = 0x40;
}

/// Ids of messages of a device.
pub mod device {
    /// `INSULA_VIRTIO_GET_DEVICE_INFO`: its type.
    pub const GET_DEVICE_INFO: u8 = 0x02;
    /// `INSULA_VIRTIO_GET_FEATURES`: the features that it offers.
    pub const GET_FEATURES: u8 = 0x03;
    /// `INSULA_VIRTIO_SET_FEATURES`: those that the driver accepts.
    pub const SET_FEATURES: u8 = 0x04;
    /// `INSULA_VIRTIO_GET_CONFIG`: read its configuration.
    pub const GET_CONFIG: u8 = 0x05;
    /// `INSULA_VIRTIO_SET_CONFIG`: write its configuration.
    pub const SET_CONFIG: u8 = 0x06;
    /// `INSULA_VIRTIO_GET_STATUS`: its status.
    pub const GET_STATUS: u8 = 0x07;
    /// `INSULA_VIRTIO_SET_STATUS`: the driver's progress; 0 resets it.
    pub const SET_STATUS: u8 = 0x08;
    /// `INSULA_VIRTIO_GET_VQUEUE`: one of its virtqueues.
    pub const GET_VQUEUE: u8 = 0x09;
    /// `INSULA_VIRTIO_SET_VQUEUE`: its addresses.
    pub const SET_VQUEUE: u8 = 0x0a;
    /// `INSULA_VIRTIO_RESET_VQUEUE`: stop using it.
    pub const RESET_VQUEUE: u8 = 0x0b;
    /// `INSULA_VIRTIO_GET_SHM`: a shared memory region of the device.
    pub const GET_SHM: u8 = 0x0c;
    /// `INSULA_VIRTIO_EVENT_CONFIG`: its status or configuration changed.
    pub const EVENT_CONFIG: u8 = 0x40;
}

/// `INSULA_VIRTIO_DEVICE_READY`: the device was added, in [`EventDevice::state`].
pub const DEVICE_READY: u16 = 1;
/// `INSULA_VIRTIO_DEVICE_REMOVED`: the device was removed.
pub const DEVICE_REMOVED: u16 = 2;

/// `struct insula_virtio_header`: header of every message.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Header {
    /// [`RESPONSE`] and [`BUS`], or 0.
    pub kind: u8,
    /// Id: see [`bus`] and [`device`].
    pub id: u8,
    /// The device's number on the bus; 0 in messages of the bus.
    pub device: u16,
    /// Chosen by the request, repeated in its answer.
    pub token: u16,
    /// Size of the message, this header included, in bytes.
    pub size: u16,
}

/// `struct insula_virtio_device_range`: device numbers to list.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct DeviceRange {
    /// The first.
    pub first: u16,
    /// Number of them.
    pub count: u16,
}

/// `struct insula_virtio_device_list`: followed by a bit for each number.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct DeviceList {
    /// The first.
    pub first: u16,
    /// Number of them.
    pub count: u16,
    /// First number of the next request; 0 for no more.
    pub next: u16,
}

/// `struct insula_virtio_ping`: a request that is echoed.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Ping {
    /// Anything.
    pub data: u32,
}

/// `struct insula_virtio_event_device`: a device was added or removed.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct EventDevice {
    /// Its number.
    pub device: u16,
    /// [`DEVICE_READY`] or [`DEVICE_REMOVED`].
    pub state: u16,
}

/// `struct insula_virtio_device_info`: type and limits of a device.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct DeviceInfo {
    /// Type by the virtio specification; 0 for none.
    pub device_id: u32,
    /// Its vendor.
    pub vendor_id: u32,
    /// 64.
    pub feature_bits: u32,
    /// Size of its configuration in bytes.
    pub config_size: u32,
    /// Number of its virtqueues.
    pub vqueues_max: u32,
    /// 0.
    pub admin_vqueue_first: u16,
    /// 0.
    pub admin_vqueues: u16,
}

/// `struct insula_virtio_blocks`: a range of blocks of 32 features.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Blocks {
    /// The first.
    pub first: u32,
    /// Number of them.
    pub count: u32,
}

/// `struct insula_virtio_features`: all features.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Features {
    /// Blocks 0 and 1.
    pub blocks: Blocks,
    /// Their bits.
    pub words: [u32; 2],
}

/// `struct insula_virtio_config_range`: a range of bytes of the configuration.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct ConfigRange {
    /// The first.
    pub offset: u32,
    /// Number of them.
    pub size: u32,
}

/// `struct insula_virtio_config`: followed by bytes of the configuration.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Config {
    /// Changes whenever the device changes its configuration.
    pub generation: u32,
    /// Of the first byte.
    pub offset: u32,
    /// Number of them.
    pub size: u32,
}

/// `struct insula_virtio_status`: a device's status.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Status {
    /// By the virtio specification.
    pub status: u32,
}

/// `struct insula_virtio_vqueue_index`: a virtqueue by its index.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct VqueueIndex {
    /// Its index in the device.
    pub index: u32,
}

/// `struct insula_virtio_vqueue`: a virtqueue.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Vqueue {
    /// Its index in the device.
    pub index: u32,
    /// Most entries; 0 if there is no such queue.
    pub size_max: u32,
    /// Entries.
    pub size: u32,
    /// Its event bit in the channel.
    pub event: u32,
    /// Physical address of its descriptors.
    pub descriptors: u64,
    /// Of its available ring.
    pub driver: u64,
    /// Of its used ring.
    pub device: u64,
}

/// `struct insula_virtio_shm`: a shared memory region of a device.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Shm {
    /// Its index.
    pub index: u32,
    /// Zero.
    pub reserved: u32,
    /// In bytes; 0 if there is none.
    pub size: u64,
    /// Physical address.
    pub start: u64,
}

/// `struct insula_virtio_event_config`: a device's status or configuration changed.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct EventConfig {
    /// The status.
    pub status: u32,
    /// The changed part, if known.
    pub config: Config,
}

//! Request numbers of the ioctls, encoded as in Linux' `include/uapi/asm-generic/ioctl.h` (x86 uses
//! it unchanged).

use core::mem::size_of;

use crate::channel::{ChannelEventfd, ChannelOpen, Channels};
use crate::grant::{GrantAdd, GrantImport, GrantRevoke, GrantTable};
use crate::lwk::{
    DelegationPlace, MirrorCreate, MirrorFaultIn, MirrorFork, MirrorInvalidate, MirrorLeave,
    MirrorMap, MirrorSignal, MirrorStart,
};
use crate::monitor::NodeConfine;
use crate::{
    Chunks, Description, Device, Devices, Hello, Image, Machine, MemoryCopy, MemoryShow, MemoryUse,
    Name, Names, NodeCreate, NodeGrow, NodeInfo, NodeInterrupt, NodeRecreate, NodeShare,
    NodeShrink, NodeStart, NodeStop, NodeSupervise,
};
use crate::{Pool, Request};

const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// `INSULA_IOC`: the type byte of every request.
pub const IOC: u8 = b'I';

/// `_IOC(direction, INSULA_IOC, number, size)`: size in bits 16-29, direction in bits 30-31.
const fn encode(direction: u32, number: u8, size: usize) -> u32 {
    assert!(size < 1 << 14, "the size field has 14 bits");
    direction << 30 | (size as u32) << 16 | (IOC as u32) << 8 | number as u32
}

const fn io(number: u8) -> u32 {
    encode(NONE, number, 0)
}

const fn iow<T>(number: u8) -> u32 {
    encode(WRITE, number, size_of::<T>())
}

const fn ior<T>(number: u8) -> u32 {
    encode(READ, number, size_of::<T>())
}

const fn iowr<T>(number: u8) -> u32 {
    encode(READ_WRITE, number, size_of::<T>())
}

/// `INSULA_HELLO` (control).
pub const HELLO: u32 = iowr::<Hello>(0x00);
/// `INSULA_MACHINE` (control).
pub const MACHINE: u32 = iowr::<Machine>(0x01);
/// `INSULA_POOL_RESERVE` (control).
pub const POOL_RESERVE: u32 = iow::<Pool>(0x02);
/// `INSULA_POOL_RELEASE` (control).
pub const POOL_RELEASE: u32 = io(0x03);
/// `INSULA_MEMORY_CREATE` (control); returns a descriptor.
pub const MEMORY_CREATE: u32 = io(0x10);
/// `INSULA_MEMORY_SHOW` (control); returns a descriptor.
pub const MEMORY_SHOW: u32 = iow::<MemoryShow>(0x14);
/// `INSULA_BASE_MEMORY` (control); returns a descriptor.
pub const BASE_MEMORY: u32 = io(0x1a);
/// `INSULA_IMAGE_ADD` (control).
pub const IMAGE_ADD: u32 = iow::<Image>(0x20);
/// `INSULA_IMAGE_OPEN` (control); returns a descriptor.
pub const IMAGE_OPEN: u32 = iow::<Name>(0x21);
/// `INSULA_IMAGE_REMOVE` (control).
pub const IMAGE_REMOVE: u32 = iow::<Name>(0x22);
/// `INSULA_IMAGE_LIST` (control).
pub const IMAGE_LIST: u32 = iowr::<Names>(0x23);
/// `INSULA_IMAGE_REPLACE` (control).
pub const IMAGE_REPLACE: u32 = iow::<Image>(0x24);
/// `INSULA_NODE_CREATE` (control); returns a descriptor.
pub const NODE_CREATE: u32 = iow::<NodeCreate>(0x30);
/// `INSULA_NODE_OPEN` (control); returns a descriptor.
pub const NODE_OPEN: u32 = iow::<Name>(0x31);
/// `INSULA_NODE_LIST` (control).
pub const NODE_LIST: u32 = iowr::<Names>(0x32);

/// `INSULA_MEMORY_GROW` (memory).
pub const MEMORY_GROW: u32 = iow::<Request>(0x11);
/// `INSULA_MEMORY_CHUNKS` (memory).
pub const MEMORY_CHUNKS: u32 = iowr::<Chunks>(0x12);
/// `INSULA_MEMORY_COPY` (memory).
pub const MEMORY_COPY: u32 = iow::<MemoryCopy>(0x13);
/// `INSULA_MEMORY_USE` (memory).
pub const MEMORY_USE: u32 = ior::<MemoryUse>(0x15);
/// `INSULA_MEMORY_STORE_SET` (memory).
pub const MEMORY_STORE_SET: u32 = io(0x16);
/// `INSULA_MEMORY_OWN_SET` (memory).
pub const MEMORY_OWN_SET: u32 = io(0x17);
/// `INSULA_MEMORY_LIST_SET` (memory).
pub const MEMORY_LIST_SET: u32 = iowr::<Chunks>(0x18);
/// `INSULA_MEMORY_GIVE_SET` (memory).
pub const MEMORY_GIVE_SET: u32 = iow::<Chunks>(0x19);

/// `INSULA_NODE_START` (node).
pub const NODE_START: u32 = iow::<NodeStart>(0x33);
/// `INSULA_NODE_STOP` (node).
pub const NODE_STOP: u32 = iow::<NodeStop>(0x34);
/// `INSULA_NODE_INFO` (node).
pub const NODE_INFO: u32 = iowr::<NodeInfo>(0x35);
/// `INSULA_NODE_REMOVE` (node).
pub const NODE_REMOVE: u32 = io(0x36);
/// `INSULA_NODE_MEMORY` (node); returns a descriptor.
pub const NODE_MEMORY: u32 = io(0x37);
/// `INSULA_NODE_INTERRUPT` (node).
pub const NODE_INTERRUPT: u32 = iow::<NodeInterrupt>(0x38);
/// `INSULA_NODE_SUPERVISE` (node).
pub const NODE_SUPERVISE: u32 = iow::<NodeSupervise>(0x39);
/// `INSULA_NODE_RETIRE` (node).
pub const NODE_RETIRE: u32 = io(0x3a);
/// `INSULA_NODE_RECREATE` (node).
pub const NODE_RECREATE: u32 = iow::<NodeRecreate>(0x3b);
/// `INSULA_NODE_GROW` (node).
pub const NODE_GROW: u32 = iow::<NodeGrow>(0x3c);
/// `INSULA_NODE_SHRINK` (node).
pub const NODE_SHRINK: u32 = iow::<NodeShrink>(0x3d);
/// `INSULA_NODE_SHARE` (node).
pub const NODE_SHARE: u32 = iow::<NodeShare>(0x3e);
/// `INSULA_NODE_SHARED` (node); returns a descriptor.
pub const NODE_SHARED: u32 = io(0x3f);
/// `INSULA_NODE_CONFINE` (node).
pub const NODE_CONFINE: u32 = iow::<NodeConfine>(0xa0);
/// `INSULA_NODE_MONITOR` (node); returns a descriptor.
pub const NODE_MONITOR: u32 = io(0xa1);
/// `INSULA_NODE_PAUSE` (node).
pub const NODE_PAUSE: u32 = io(0xa2);
/// `INSULA_NODE_RESUME` (node).
pub const NODE_RESUME: u32 = io(0xa3);
/// `INSULA_NODE_EXCHANGE_NAMES` (node).
pub const NODE_EXCHANGE_NAMES: u32 = iow::<Name>(0xa4);
/// `INSULA_NODE_RENAME` (node).
pub const NODE_RENAME: u32 = iow::<Name>(0xa5);
/// `INSULA_NODE_DEVICE_ADD` (node).
pub const NODE_DEVICE_ADD: u32 = iow::<Device>(0x60);
/// `INSULA_NODE_DEVICES` (node).
pub const NODE_DEVICES: u32 = iowr::<Devices>(0x61);

/// `INSULA_NODE_CHANNELS` (node).
pub const NODE_CHANNELS: u32 = iow::<Channels>(0x50);
/// `INSULA_CHANNEL_OPEN` (node in the base, control in a node); returns a descriptor.
pub const CHANNEL_OPEN: u32 = iowr::<ChannelOpen>(0x51);
/// `INSULA_CHANNEL_RING` (channel).
pub const CHANNEL_RING: u32 = io(0x52);
/// `INSULA_CHANNEL_EVENTFD` (channel).
pub const CHANNEL_EVENTFD: u32 = iow::<ChannelEventfd>(0x53);

/// `INSULA_NODE_DELEGATION` (node).
pub const NODE_DELEGATION: u32 = iow::<DelegationPlace>(0x70);
/// `INSULA_MIRROR_CREATE` (node); returns a descriptor.
pub const MIRROR_CREATE: u32 = iowr::<MirrorCreate>(0x71);
/// `INSULA_MIRROR_START` (mirror).
pub const MIRROR_START: u32 = iow::<MirrorStart>(0x72);
/// `INSULA_MIRROR_SLOT_ALLOC` (mirror); returns a slot.
pub const MIRROR_SLOT_ALLOC: u32 = io(0x73);
/// `INSULA_MIRROR_SLOT_ATTACH` (mirror); the argument is a slot.
pub const MIRROR_SLOT_ATTACH: u32 = io(0x74);
/// `INSULA_MIRROR_SLOT_FREE` (mirror); the argument is a slot.
pub const MIRROR_SLOT_FREE: u32 = io(0x75);
/// `INSULA_MIRROR_SLOT_WAIT` (mirror); the argument is a slot.
pub const MIRROR_SLOT_WAIT: u32 = io(0x76);
/// `INSULA_MIRROR_SLOT_WAKE` (mirror); the argument is a slot.
pub const MIRROR_SLOT_WAKE: u32 = io(0x77);
/// `INSULA_MIRROR_SIGNAL` (mirror).
pub const MIRROR_SIGNAL: u32 = iow::<MirrorSignal>(0x78);
/// `INSULA_MIRROR_INVALIDATE` (mirror).
pub const MIRROR_INVALIDATE: u32 = iow::<MirrorInvalidate>(0x79);
/// `INSULA_MIRROR_FORK` (mirror); returns a descriptor.
pub const MIRROR_FORK: u32 = ior::<MirrorFork>(0x7a);
/// `INSULA_MIRROR_ADOPT` (mirror).
pub const MIRROR_ADOPT: u32 = io(0x7b);
/// `INSULA_MIRROR_MAP` (mirror).
pub const MIRROR_MAP: u32 = iow::<MirrorMap>(0x7c);
/// `INSULA_MIRROR_FAULT_IN` (mirror).
pub const MIRROR_FAULT_IN: u32 = iow::<MirrorFaultIn>(0x7d);
/// `INSULA_MIRROR_LEAVE` (mirror).
pub const MIRROR_LEAVE: u32 = iowr::<MirrorLeave>(0x7f);
/// `INSULA_MIRROR_CLOSE_ON_EXEC` (mirror).
pub const MIRROR_CLOSE_ON_EXEC: u32 = io(0x7e);

/// `INSULA_DESCRIPTION` (memory of an image, node).
pub const DESCRIPTION: u32 = iowr::<Description>(0x40);

/// `INSULA_NODE_GRANT_TABLE` (node); returns a descriptor.
pub const NODE_GRANT_TABLE: u32 = iowr::<GrantTable>(0x90);
/// `INSULA_GRANT_ADD` (grant table).
pub const GRANT_ADD: u32 = iow::<GrantAdd>(0x91);
/// `INSULA_GRANT_REVOKE` (grant table).
pub const GRANT_REVOKE: u32 = iow::<GrantRevoke>(0x92);
/// `INSULA_GRANT_IMPORT` (control in a node); returns a descriptor.
pub const GRANT_IMPORT: u32 = iow::<GrantImport>(0x93);

//! Structures of random calls to the module: valid ones, valid ones with some bytes changed, and
//! random ones.

use std::ops::Range;
use std::os::fd::RawFd;

use fastrand::Rng;
use insula_abi as abi;
use insula_abi::grant::GRANT_TIMEOUT_MAX_MS;
use insula_abi::ioctl;
use zerocopy::IntoBytes;

use super::harmless::restrict;
use super::numbers;
use crate::base::support::raw_device::Arena;

/// Words of an arena: room for the largest description, and more.
pub(super) const ARENA_WORDS: usize = 1 << 16;
/// Offset in an arena of the data that structures point to, in words and bytes.
const DATA_WORD: usize = 64;
const DATA_OFFSET: u64 = 8 * DATA_WORD as u64;
/// Unaligned data starts within this many bytes.
const SHIFTS: u64 = 16;

pub(super) const GRANULE: u64 = abi::GRANULE;
/// Largest possible request for memory, in bytes.
pub(super) const SIZE_MAX: u64 = 4 * GRANULE;
/// More than any machine has.
pub(super) const TOO_MUCH: u64 = 1 << 50;
pub(super) const PAGE: u64 = 4096;
/// Most pages of an arena that are granted, and most ranges of them.
pub(super) const GRANTED_PAGES: u64 = 32;
/// Cores that are requested: some exist, some do not.
const CPUS: u32 = 6;
/// Cores that are neither the base's first nor the neighbour's.
pub(super) const FREE_CPUS: Range<u32> = 1..3;

/// Offsets in a monitor's memory of its header and of its page tables.
pub(super) const MONITOR_HEADER: u64 = 0x1000;
pub(super) const MONITOR_TABLES: u64 = 0x2000;

/// Names of images and nodes: few, so that they collide.
const NAMES: [&str; 4] = ["a", "b-1", "c.2", "d_3"];

/// Descriptors and addresses that structures may contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Available {
    /// A memory object's descriptor.
    pub(super) memory: RawFd,
    /// Descriptors of eventfds.
    pub(super) eventfds: [RawFd; 2],
    /// Physical address in the memory of the node that is called, or any.
    pub(super) address: u64,
}

/// Writes a structure for the request into the arena: valid, changed or random.
pub(super) fn generate(rng: &mut Rng, arena: &Arena, request: u32, available: Available) {
    let data = arena.address() + DATA_OFFSET + rng.u64(..SHIFTS);
    match request {
        ioctl::MEMORY_GIVE_SET => arena.put(DATA_WORD, working_set(rng).as_bytes()),
        _ => arena.put(DATA_WORD, [0; 8].map(|_| cpu(rng)).as_bytes()),
    }
    let mut bytes = match rng.u8(..8) {
        0 => (0..rng.usize(..256)).map(|_| rng.u8(..)).collect(),
        _ => valid(rng, request, data, available),
    };
    // Data behind the structure, should its size be cut off.
    bytes.resize(bytes.len().max(256), 0);
    if rng.u8(..4) == 0 {
        change(rng, &mut bytes);
    }
    restrict(rng, request, &mut bytes, data);
    arena.put(0, &bytes);
}

/// A core, mostly an existing one.
fn cpu(rng: &mut Rng) -> u32 {
    match rng.u8(..4) {
        0 => rng.u32(..CPUS),
        _ => rng.u32(FREE_CPUS),
    }
}

/// A working set of an object that is large enough, with more extents than are given.
fn working_set(rng: &mut Rng) -> [abi::Chunk; 8] {
    core::array::from_fn(|at| abi::Chunk {
        start: PAGE * (4 * at as u64 + rng.u64(..2)),
        size: PAGE * rng.u64(1..3),
    })
}

/// Changes some bytes, or some numbers.
fn change(rng: &mut Rng, bytes: &mut [u8]) {
    for _ in 0..rng.u8(1..4) {
        let at = rng.usize(..bytes.len().min(128));
        if rng.bool() {
            let size = [4, 8][rng.usize(..2)];
            let at = at / size * size;
            let number = numbers::any(rng).to_ne_bytes();
            bytes[at..at + size].copy_from_slice(&number[..size]);
            continue;
        }
        bytes[at] = match rng.u8(..4) {
            0 => 0,
            1 => 0xff,
            2 => bytes[at] ^ (1 << rng.u8(..8)),
            _ => rng.u8(..),
        };
    }
}

fn valid(rng: &mut Rng, request: u32, data: u64, available: Available) -> Vec<u8> {
    let memory = available.memory;
    let name = name(rng);
    let few = rng.u32(..6);
    match request {
        ioctl::HELLO => abi::Hello::default().as_bytes().to_vec(),
        ioctl::MACHINE => with_zeros(abi::Machine {
            cpus: data,
            cpus_capacity: few,
            ..Default::default()
        }),
        ioctl::POOL_RESERVE => with_zeros(abi::Pool {
            cpus: data,
            cpus_count: few / 2,
            reserved: 0,
            memory: memory_request(rng),
        }),
        ioctl::IMAGE_ADD | ioctl::IMAGE_REPLACE => with_zeros(abi::Image {
            name,
            description: data,
            description_size: rng.u32(..5000),
            memory,
        }),
        ioctl::IMAGE_OPEN
        | ioctl::IMAGE_REMOVE
        | ioctl::NODE_OPEN
        | ioctl::NODE_EXCHANGE_NAMES
        | ioctl::NODE_RENAME => with_zeros(name),
        ioctl::IMAGE_LIST | ioctl::NODE_LIST => with_zeros(abi::Names {
            names: data,
            capacity: few,
            count: 0,
        }),
        ioctl::NODE_CREATE => {
            let (core_share, share_by) = core_share(rng);
            with_zeros(abi::NodeCreate {
                name,
                description: data,
                description_size: rng.u32(..5000),
                cpus_count: 1 + few / 5,
                cpus: data,
                memory,
                core_share,
                share_by,
            })
        }
        ioctl::MEMORY_GROW => with_zeros(memory_request(rng)),
        ioctl::MEMORY_CHUNKS | ioctl::MEMORY_LIST_SET | ioctl::MEMORY_GIVE_SET => {
            with_zeros(abi::Chunks {
                chunks: data,
                capacity: few,
                count: 0,
            })
        }
        ioctl::MEMORY_COPY => with_zeros(abi::MemoryCopy {
            from: rng.u64(..GRANULE),
            to: GRANULE + rng.u64(..GRANULE),
            size: either(rng, |rng| rng.u64(..GRANULE) >> rng.u32(..8)),
            source: memory,
            flags: 0,
        }),
        ioctl::MEMORY_SHOW => with_zeros(abi::MemoryShow {
            chunks: data,
            count: few,
            source: memory,
        }),
        ioctl::DESCRIPTION => with_zeros(abi::Description {
            bytes: data,
            capacity: rng.u32(..5000),
            size: 0,
        }),
        ioctl::NODE_GROW => with_zeros(abi::NodeGrow {
            cpus: data,
            cpus_count: few / 2,
            memory: if rng.bool() { memory } else { -1 },
        }),
        _ => valid_for_node(rng, request, data, available),
    }
}

fn valid_for_node(rng: &mut Rng, request: u32, data: u64, available: Available) -> Vec<u8> {
    match request {
        ioctl::NODE_START => with_zeros(abi::NodeStart {
            entry: either(rng, |rng| rng.u64(..)),
            page_table: either(rng, |rng| rng.u64(..)),
            argument: rng.u64(..),
            power_off: either(rng, |rng| rng.u64(..)),
            reset: either(rng, |rng| rng.u64(..)),
        }),
        ioctl::NODE_STOP => with_zeros(abi::NodeStop {
            reason: abi::Reason(rng.u32(..12)),
            reserved: 0,
        }),
        ioctl::NODE_INFO => with_zeros(abi::NodeInfo {
            cpus: data,
            cpus_capacity: rng.u32(..6),
            ..Default::default()
        }),
        ioctl::NODE_INTERRUPT => with_zeros(abi::NodeInterrupt {
            index: rng.u32(..4),
            vector: match rng.u8(..4) {
                0 => abi::VECTOR_NMI,
                _ => rng.u32(..300),
            },
        }),
        ioctl::NODE_SUPERVISE => with_zeros(abi::NodeSupervise {
            keep_cpus: 1 << rng.u32(..10),
            flags: [0, abi::NODE_UNRESPONSIVE, rng.u32(..16)][rng.usize(..3)],
        }),
        ioctl::NODE_RECREATE => with_zeros(abi::NodeRecreate {
            description: data,
            description_size: rng.u32(..5000),
            flags: rng.u32(..2),
        }),
        ioctl::NODE_SHRINK => with_zeros(abi::NodeShrink {
            cpus: data,
            // Most nodes have nothing to remove.
            cpus_count: rng.u32(..5).saturating_sub(2),
            chunks: rng.u32(..5).saturating_sub(2),
        }),
        ioctl::NODE_SHARE => with_zeros(abi::NodeShare {
            memory: available.memory,
            flags: u32::from(rng.u8(..16) == 0),
        }),
        ioctl::NODE_DELEGATION => with_zeros(abi::lwk::DelegationPlace {
            start: either(rng, |_| available.address),
            pages: rng.u32(..160),
            reserved: 0,
        }),
        ioctl::MIRROR_CREATE => with_zeros(abi::lwk::MirrorCreate {
            start: either(rng, |rng| rng.u64(..1 << 46)) & !0xfff,
            end: either(rng, |rng| rng.u64(1 << 46..1 << 48)) & !0xfff,
            slot: 0,
            flags: 0,
        }),
        // All functions of bus 0 are refused, but many of them are vital to the base.
        ioctl::NODE_DEVICE_ADD => with_zeros(abi::Device {
            segment: rng.u32(..2),
            bus: rng.u32(..2),
            function: rng.u32(..260),
            flags: 0,
        }),
        ioctl::NODE_DEVICES => with_zeros(abi::Devices {
            devices: data,
            capacity: rng.u32(..6),
            count: 0,
        }),
        ioctl::NODE_CONFINE => with_zeros(abi::monitor::NodeConfine {
            memory: available.memory,
            flags: u32::from(rng.u8(..16) == 0),
            header: either(rng, |_| MONITOR_HEADER),
            entry: rng.u64(..),
            page_table: either(rng, |_| available.address + MONITOR_TABLES),
            argument: rng.u64(..),
        }),
        _ => valid_for_channels(rng, request, data, available),
    }
}

fn valid_for_channels(rng: &mut Rng, request: u32, data: u64, available: Available) -> Vec<u8> {
    let range = |rng: &mut Rng| (page_in_arena(rng, data), PAGE * rng.u64(1..GRANTED_PAGES));
    match request {
        ioctl::NODE_CHANNELS => with_zeros(abi::channel::Channels {
            start: either(rng, |_| available.address),
            count: rng.u32(..14),
            slots: 1 << rng.u32(5..10),
        }),
        ioctl::CHANNEL_OPEN => with_zeros(abi::channel::ChannelOpen {
            index: rng.u32(..13),
            slots: 0,
        }),
        ioctl::CHANNEL_EVENTFD => with_zeros(abi::channel::ChannelEventfd {
            event: rng.u32(..abi::channel::EVENTS + 2),
            ioeventfd: available.eventfds[0],
            irqfd: if rng.bool() {
                available.eventfds[1]
            } else {
                -1
            },
            reserved: 0,
        }),
        ioctl::NODE_GRANT_TABLE => with_zeros(abi::grant::GrantTable {
            id: 0,
            timeout_ms: GRANT_TIMEOUT_MAX_MS,
        }),
        ioctl::GRANT_ADD => {
            let (address, size) = range(rng);
            with_zeros(abi::grant::GrantAdd {
                address,
                size,
                pages: data,
                capacity: rng.u32(..20),
                flags: rng.u32(..2),
            })
        }
        ioctl::GRANT_REVOKE => {
            let (address, size) = range(rng);
            with_zeros(abi::grant::GrantRevoke {
                address: either(rng, |_| address),
                size: either(rng, |_| size),
            })
        }
        _ => Vec::new(),
    }
}

/// Mostly a valid number, else one at the edges of arithmetic.
fn either(rng: &mut Rng, good: impl FnOnce(&mut Rng) -> u64) -> u64 {
    match rng.u8(..8) {
        0 => numbers::any(rng),
        _ => good(rng),
    }
}

/// How a node shares its core, if it does: none of these can be started.
fn core_share(rng: &mut Rng) -> (u16, abi::ShareBy) {
    match rng.bool() {
        true => (0, abi::ShareBy::INTERRUPT),
        false => (
            either(rng, |rng| rng.u64(..102)) as u16,
            abi::ShareBy(rng.u16(..4)),
        ),
    }
}

/// A page of the caller's arena, behind the data that structures point to.
pub(super) fn page_in_arena(rng: &mut Rng, data: u64) -> u64 {
    (data & !(PAGE - 1)) + PAGE * rng.u64(1..GRANTED_PAGES)
}

fn with_zeros(structure: impl IntoBytes + zerocopy::Immutable) -> Vec<u8> {
    structure.as_bytes().to_vec()
}

/// One of few names.
pub(super) fn name(rng: &mut Rng) -> abi::Name {
    abi::Name::new(NAMES[rng.usize(..NAMES.len())]).unwrap_or(abi::Name::EMPTY)
}

/// A request for memory: some granules, or some pages below 1 MiB.
fn memory_request(rng: &mut Rng) -> abi::Request {
    let low = rng.u8(..4) == 0;
    let granules = rng.u64(1..=4);
    // Most such bounds cannot be met.
    let bound = |rng: &mut Rng| match rng.u8(..8) {
        0 => [1 << 30, 3 << 30, 1 << 32][rng.usize(..3)],
        1 => numbers::any(rng),
        _ => 0,
    };
    abi::Request {
        size: if low {
            4096 * granules
        } else {
            GRANULE * granules
        },
        min_phys: if low { 1 << 16 } else { bound(rng) },
        max_phys: if low { 640 << 10 } else { bound(rng) },
        chunk_max: if rng.bool() { 0 } else { GRANULE },
        numa_node: if rng.bool() { abi::NUMA_ANY } else { 0 },
        flags: if rng.u8(..4) == 0 {
            abi::REQUEST_BLOCKS
        } else {
            0
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::harmless::addresses;
    use super::super::requests::pick;
    use super::*;
    use crate::base::support::raw_device::NOWHERE;
    use std::mem::offset_of;

    /// No generated structure can harm the machine or this process.
    #[test]
    fn generated_structures_are_harmless() {
        let mut rng = Rng::with_seed(7);
        let arena = Arena::new(ARENA_WORDS);
        let word = |offset: usize| arena.word(offset / 8);
        for _ in 0..20_000 {
            let (request, _) = pick(&mut rng);
            let available = Available {
                memory: 3,
                eventfds: [4, 5],
                address: 1 << 30,
            };
            generate(&mut rng, &arena, request, available);
            for &offset in addresses(request) {
                let address = word(offset);
                let inside = address.wrapping_sub(arena.address() + DATA_OFFSET) < SHIFTS;
                assert!(inside || NOWHERE.contains(&address), "{address:x}");
            }
            match request {
                ioctl::NODE_START => {
                    assert_eq!(word(offset_of!(abi::NodeStart, page_table)) & 1, 1);
                }
                ioctl::MEMORY_GROW => {
                    let size = word(offset_of!(abi::Request, size));
                    assert!(size <= SIZE_MAX || size >= TOO_MUCH, "{size:x}");
                }
                ioctl::NODE_INTERRUPT => {
                    let vector = word(offset_of!(abi::NodeInterrupt, index)) >> 32;
                    assert_ne!(vector, u64::from(abi::VECTOR_NMI));
                }
                ioctl::MEMORY_COPY => {
                    assert!(word(offset_of!(abi::MemoryCopy, to)) >= GRANULE);
                }
                ioctl::GRANT_ADD => {
                    let size = word(offset_of!(abi::grant::GrantAdd, size));
                    let address = word(offset_of!(abi::grant::GrantAdd, address));
                    let ahead = address.wrapping_sub(arena.address());
                    let inside = ahead <= 8 * ARENA_WORDS as u64 && size <= GRANTED_PAGES * PAGE;
                    assert!(inside || size >= TOO_MUCH, "{address:x} {size:x}");
                }
                _ => {}
            }
        }
    }
}

//! Calls to the module made up at random: valid ones, ones that were valid before some of their
//! bytes were changed, and plain nonsense.
//!
//! Some things are never made up. A structure's addresses stay within the caller's arena or are
//! such that nobody has anything there. Sizes of memory are small, or too large for any machine:
//! else the base would be left with none. And no start names a page table that the module could
//! accept: a direct node that runs garbage resets the whole machine, as direct nodes can.

use std::mem::offset_of;
use std::os::fd::RawFd;

use fastrand::Rng;
use insula_abi as abi;
use insula_abi::ioctl;
use zerocopy::{FromBytes, IntoBytes};

use super::raw_device::{Arena, NOWHERE};

/// Words of an arena: room for the largest description, and more.
pub(super) const ARENA_WORDS: usize = 1 << 16;
/// Where in an arena structures point to, in words and bytes.
const DATA_WORD: usize = 64;
const DATA_OFFSET: u64 = 8 * DATA_WORD as u64;
/// Structures begin unaligned data within as many bytes.
const SHIFTS: u64 = 16;

const GRANULE: u64 = abi::GRANULE;
/// Most memory that is asked for at once, in bytes.
const MOST: u64 = 4 * GRANULE;
/// More than any machine has.
const TOO_MUCH: u64 = 1 << 50;
/// Cores that are asked for: some there are, some not.
const CPUS: u32 = 6;

/// Names of images and nodes: few, so that they meet.
const NAMES: [&str; 4] = ["a", "b-1", "c.2", "d_3"];

/// Which descriptor a request is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Control,
    Memory,
    Node,
}

/// Each request, whom it is meant for, and how often it is made among all. What takes cores takes
/// long, and is made less often.
const REQUESTS: &[(u32, Kind, u32)] = &[
    (ioctl::HELLO, Kind::Control, 10),
    (ioctl::MACHINE, Kind::Control, 40),
    (ioctl::POOL_RESERVE, Kind::Control, 6),
    (ioctl::POOL_RELEASE, Kind::Control, 6),
    (ioctl::MEMORY_CREATE, Kind::Control, 60),
    (ioctl::IMAGE_ADD, Kind::Control, 60),
    (ioctl::IMAGE_OPEN, Kind::Control, 40),
    (ioctl::IMAGE_REMOVE, Kind::Control, 60),
    (ioctl::IMAGE_LIST, Kind::Control, 40),
    (ioctl::NODE_CREATE, Kind::Control, 20),
    (ioctl::NODE_OPEN, Kind::Control, 40),
    (ioctl::NODE_LIST, Kind::Control, 40),
    (ioctl::MEMORY_GROW, Kind::Memory, 80),
    (ioctl::MEMORY_CHUNKS, Kind::Memory, 80),
    (ioctl::MEMORY_COPY, Kind::Memory, 80),
    (ioctl::MEMORY_REVOKE, Kind::Memory, 6),
    (ioctl::DESCRIPTION, Kind::Memory, 60),
    (ioctl::NODE_START, Kind::Node, 60),
    (ioctl::NODE_STOP, Kind::Node, 60),
    (ioctl::NODE_INFO, Kind::Node, 60),
    (ioctl::NODE_REMOVE, Kind::Node, 40),
    (ioctl::NODE_MEMORY, Kind::Node, 20),
    (ioctl::NODE_INTERRUPT, Kind::Node, 60),
    (ioctl::NODE_SUPERVISE, Kind::Node, 40),
    (ioctl::NODE_RETIRE, Kind::Node, 20),
    (ioctl::NODE_RECREATE, Kind::Node, 20),
    (ioctl::NODE_GROW, Kind::Node, 40),
    (ioctl::NODE_SHRINK, Kind::Node, 40),
    (ioctl::NODE_DEVICE_ADD, Kind::Node, 40),
    (ioctl::NODE_DEVICES, Kind::Node, 40),
    (ioctl::DESCRIPTION, Kind::Node, 60),
    (ioctl::NODE_CHANNELS, Kind::Node, 40),
    (ioctl::CHANNEL_OPEN, Kind::Node, 40),
    (ioctl::NODE_DELEGATION, Kind::Node, 40),
    (ioctl::SPACE_CREATE, Kind::Node, 40),
];

/// A request from the list, and whom it is meant for.
pub(super) fn pick(rng: &mut Rng) -> (u32, Kind) {
    let total: u32 = REQUESTS.iter().map(|request| request.2).sum();
    let mut ticket = rng.u32(..total);
    for &(request, kind, weight) in REQUESTS {
        if ticket < weight {
            return (request, kind);
        }
        ticket -= weight;
    }
    (ioctl::HELLO, Kind::Control)
}

/// Any number, mostly one that looks like the module's.
pub(super) fn random_request(rng: &mut Rng) -> u32 {
    let number = rng.u32(..);
    if rng.u8(..4) == 0 {
        return number;
    }
    number & !0xff00 | u32::from(ioctl::IOC) << 8
}

/// Puts a structure for the request into the arena: valid, changed or random. `memory` is some
/// memory object's descriptor.
pub(super) fn make_up(rng: &mut Rng, arena: &Arena, request: u32, memory: RawFd) {
    let data = arena.address() + DATA_OFFSET + rng.u64(..SHIFTS);
    let cpus: Vec<u32> = (0..8).map(|_| rng.u32(..CPUS)).collect();
    arena.put(DATA_WORD, cpus.as_bytes());
    let mut bytes = match rng.u8(..8) {
        0 => (0..rng.usize(..256)).map(|_| rng.u8(..)).collect(),
        _ => valid(rng, request, data, memory),
    };
    // What the structure goes on with, should it be cut off.
    bytes.resize(bytes.len().max(256), 0);
    if rng.u8(..4) == 0 {
        change(rng, &mut bytes);
    }
    tame(rng, request, &mut bytes, data);
    arena.put(0, &bytes);
}

/// Changes some bytes.
fn change(rng: &mut Rng, bytes: &mut [u8]) {
    for _ in 0..rng.u8(1..4) {
        let place = rng.usize(..bytes.len().min(128));
        bytes[place] = match rng.u8(..4) {
            0 => 0,
            1 => 0xff,
            2 => bytes[place] ^ (1 << rng.u8(..8)),
            _ => rng.u8(..),
        };
    }
}

fn valid(rng: &mut Rng, request: u32, data: u64, memory: RawFd) -> Vec<u8> {
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
        ioctl::IMAGE_ADD => with_zeros(abi::Image {
            name,
            description: data,
            description_size: rng.u32(..5000),
            memory,
        }),
        ioctl::IMAGE_OPEN | ioctl::IMAGE_REMOVE | ioctl::NODE_OPEN => with_zeros(name),
        ioctl::IMAGE_LIST | ioctl::NODE_LIST => with_zeros(abi::Names {
            names: data,
            capacity: few,
            count: 0,
        }),
        ioctl::NODE_CREATE => with_zeros(abi::NodeCreate {
            name,
            description: data,
            description_size: rng.u32(..5000),
            cpus_count: 1 + few / 3,
            cpus: data,
            memory,
            flags: 0,
        }),
        ioctl::MEMORY_GROW => with_zeros(memory_request(rng)),
        ioctl::MEMORY_CHUNKS => with_zeros(abi::Chunks {
            chunks: data,
            capacity: few,
            count: 0,
        }),
        ioctl::MEMORY_COPY => with_zeros(abi::MemoryCopy {
            from: rng.u64(..MOST),
            to: rng.u64(..MOST),
            size: rng.u64(..GRANULE),
            source: memory,
            flags: 0,
        }),
        ioctl::DESCRIPTION => with_zeros(abi::Description {
            bytes: data,
            capacity: rng.u32(..5000),
            size: 0,
        }),
        ioctl::NODE_GROW => with_zeros(abi::NodeGrow {
            cpus: data,
            cpus_count: few,
            memory: if rng.bool() { memory } else { -1 },
        }),
        _ => valid_for_node(rng, request, data),
    }
}

fn valid_for_node(rng: &mut Rng, request: u32, data: u64) -> Vec<u8> {
    match request {
        ioctl::NODE_START => with_zeros(abi::NodeStart {
            entry: rng.u64(..),
            page_table: rng.u64(..),
            argument: rng.u64(..),
            power_off: rng.u64(..),
            reset: rng.u64(..),
        }),
        ioctl::NODE_STOP => with_zeros(abi::NodeStop {
            reason: abi::Reason(rng.u32(..8)),
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
            hold: 1 << rng.u32(..10),
            flags: rng.u32(..16),
        }),
        ioctl::NODE_RECREATE => with_zeros(abi::NodeRecreate {
            description: data,
            description_size: rng.u32(..5000),
            flags: rng.u32(..2),
        }),
        ioctl::NODE_SHRINK => with_zeros(abi::NodeShrink {
            cpus: data,
            cpus_count: rng.u32(..3),
            chunks: rng.u32(..3),
        }),
        ioctl::NODE_CHANNELS => with_zeros(abi::channel::Channels {
            start: rng.u64(..1 << 32) & !0xfff,
            count: rng.u32(..4),
            slots: 1 << rng.u32(4..10),
        }),
        ioctl::NODE_DELEGATION => with_zeros(abi::lwk::DelegationPlace {
            start: rng.u64(..1 << 32) & !0xfff,
            pages: rng.u32(..40),
            reserved: 0,
        }),
        ioctl::SPACE_CREATE => with_zeros(abi::lwk::SpaceCreate {
            start: rng.u64(..1 << 48) & !0xfff,
            end: rng.u64(..1 << 48) & !0xfff,
            desk: 0,
            flags: 0,
        }),
        ioctl::CHANNEL_OPEN => with_zeros(abi::channel::ChannelOpen {
            index: rng.u32(..4),
            slots: 0,
        }),
        // All that there is lies on bus 0 and cannot be a node's, but much of it is the base's life.
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
        _ => Vec::new(),
    }
}

fn with_zeros(structure: impl IntoBytes + zerocopy::Immutable) -> Vec<u8> {
    structure.as_bytes().to_vec()
}

fn name(rng: &mut Rng) -> abi::Name {
    abi::Name::new(NAMES[rng.usize(..NAMES.len())]).unwrap_or(abi::Name::EMPTY)
}

/// A request for memory: some granules, or some pages below 1 MiB.
fn memory_request(rng: &mut Rng) -> abi::Request {
    let low = rng.u8(..4) == 0;
    let granules = rng.u64(1..=4);
    let bounds = [0, 0, 1 << 30, 3 << 30, 1 << 32];
    abi::Request {
        size: if low {
            4096 * granules
        } else {
            GRANULE * granules
        },
        min_phys: if low { 1 << 16 } else { bounds[rng.usize(..5)] },
        max_phys: if low {
            640 << 10
        } else {
            bounds[rng.usize(..5)]
        },
        chunk_max: if rng.bool() { 0 } else { GRANULE },
        numa_node: if rng.bool() { abi::NUMA_ANY } else { 0 },
        flags: if rng.u8(..4) == 0 {
            abi::REQUEST_BLOCKS
        } else {
            0
        },
    }
}

/// Takes out what must not be made up: see this file's opening words.
fn tame(rng: &mut Rng, request: u32, bytes: &mut [u8], data: u64) {
    for &offset in addresses(request) {
        let address = match rng.u8(..8) {
            0 => NOWHERE[rng.usize(..NOWHERE.len())],
            _ => data,
        };
        put(bytes, offset, address);
    }
    let size = match request {
        ioctl::MEMORY_GROW => offset_of!(abi::Request, size),
        ioctl::POOL_RESERVE => offset_of!(abi::Pool, memory) + offset_of!(abi::Request, size),
        ioctl::NODE_START => {
            // A page table lies on a page's boundary, so the module refuses this one.
            let offset = offset_of!(abi::NodeStart, page_table);
            let page_table = get(bytes, offset) | 1;
            return put(bytes, offset, page_table);
        }
        _ => return,
    };
    let asked = get(bytes, size);
    if (MOST + 1..TOO_MUCH).contains(&asked) {
        put(bytes, size, asked % (MOST + 1));
    }
}

/// Where a request's structure holds addresses of user space.
fn addresses(request: u32) -> &'static [usize] {
    match request {
        ioctl::MACHINE => &[offset_of!(abi::Machine, cpus)],
        ioctl::POOL_RESERVE => &[offset_of!(abi::Pool, cpus)],
        ioctl::IMAGE_ADD => &[offset_of!(abi::Image, description)],
        ioctl::IMAGE_LIST | ioctl::NODE_LIST => &[offset_of!(abi::Names, names)],
        ioctl::NODE_CREATE => &[
            offset_of!(abi::NodeCreate, description),
            offset_of!(abi::NodeCreate, cpus),
        ],
        ioctl::NODE_INFO => &[offset_of!(abi::NodeInfo, cpus)],
        ioctl::NODE_GROW => &[offset_of!(abi::NodeGrow, cpus)],
        ioctl::NODE_SHRINK => &[offset_of!(abi::NodeShrink, cpus)],
        ioctl::NODE_RECREATE => &[offset_of!(abi::NodeRecreate, description)],
        ioctl::MEMORY_CHUNKS => &[offset_of!(abi::Chunks, chunks)],
        ioctl::DESCRIPTION => &[offset_of!(abi::Description, bytes)],
        ioctl::NODE_DEVICES => &[offset_of!(abi::Devices, devices)],
        _ => &[],
    }
}

fn get(bytes: &[u8], offset: usize) -> u64 {
    u64::read_from_prefix(&bytes[offset..]).map_or(0, |(value, _)| value)
}

fn put(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is made up, it cannot harm the machine or this process.
    #[test]
    fn made_up_structures_are_tame() {
        let mut rng = Rng::with_seed(7);
        let arena = Arena::new(ARENA_WORDS);
        let word = |offset: usize| arena.word(offset / 8);
        for _ in 0..20_000 {
            let (request, _) = pick(&mut rng);
            make_up(&mut rng, &arena, request, 3);
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
                    assert!(size <= MOST || size >= TOO_MUCH, "{size:x}");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn every_request_is_picked() {
        let mut rng = Rng::with_seed(7);
        let picked: std::collections::BTreeSet<u32> =
            (0..20_000).map(|_| pick(&mut rng).0).collect();
        // The description is asked of two kinds.
        assert_eq!(picked.len(), REQUESTS.len() - 1);
    }
}

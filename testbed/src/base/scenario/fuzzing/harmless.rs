//! Values that random calls never have.
//!
//! A structure's addresses stay within the caller's arena or are unmapped in any process. Sizes of
//! memory are small, or too large for any machine: otherwise the base would be left with none. And
//! no start names a page table that the module could accept, no copy overwrites what a node
//! executes, and no node gets an NMI: a native node that executes garbage, or takes an exception
//! that it cannot handle, resets the whole machine.

use std::mem::offset_of;

use fastrand::Rng;
use insula_abi as abi;
use insula_abi::grant::{GRANT_TIMEOUT_MAX_MS, GRANT_TIMEOUT_MIN_MS};
use insula_abi::ioctl;
use zerocopy::FromBytes;

use super::call::{GRANTED_PAGES, GRANULE, PAGE, SIZE_MAX, TOO_MUCH, page_in_arena};
use crate::base::support::raw_device::NOWHERE;

/// Removes values that must not be generated: see above.
pub(super) fn restrict(rng: &mut Rng, request: u32, bytes: &mut [u8], data: u64) {
    for &offset in addresses(request) {
        let address = match rng.u8(..8) {
            0 => NOWHERE[rng.usize(..NOWHERE.len())],
            _ => data,
        };
        put(bytes, offset, address);
    }
    match request {
        // Running nodes have no handler for NMIs: see above.
        ioctl::NODE_INTERRUPT => {
            let offset = offset_of!(abi::NodeInterrupt, vector);
            if get(bytes, offset) as u32 == abi::VECTOR_NMI {
                bytes[offset] = 0;
            }
        }
        // The nodes' code and page tables lie in the first granule of their memory.
        ioctl::MEMORY_COPY => {
            let offset = offset_of!(abi::MemoryCopy, to);
            let to = get(bytes, offset).max(GRANULE);
            put(bytes, offset, to);
        }
        // A node on a loaded machine may be slow, which must not end it.
        ioctl::NODE_GRANT_TABLE => {
            let offset = offset_of!(abi::grant::GrantTable, timeout_ms);
            let timeout_ms = get(bytes, offset) as u32;
            if (GRANT_TIMEOUT_MIN_MS..=GRANT_TIMEOUT_MAX_MS).contains(&timeout_ms) {
                bytes[offset..offset + 4].copy_from_slice(&GRANT_TIMEOUT_MAX_MS.to_ne_bytes());
            }
        }
        // Granted pages of this process lie in the arena, which may have any content.
        ioctl::GRANT_ADD => {
            let address = page_in_arena(rng, data) + rng.u64(..64) / 63;
            put(bytes, offset_of!(abi::grant::GrantAdd, address), address);
            let offset = offset_of!(abi::grant::GrantAdd, size);
            let size = get(bytes, offset);
            if size < TOO_MUCH {
                put(bytes, offset, size % (GRANTED_PAGES * PAGE));
            }
        }
        _ => {}
    }
    let size = match request {
        ioctl::MEMORY_GROW => offset_of!(abi::Request, size),
        ioctl::POOL_RESERVE => offset_of!(abi::Pool, memory) + offset_of!(abi::Request, size),
        ioctl::NODE_START => {
            // A page table must be aligned to a page, so the module refuses this one.
            let offset = offset_of!(abi::NodeStart, page_table);
            let page_table = get(bytes, offset) | 1;
            return put(bytes, offset, page_table);
        }
        _ => return,
    };
    let asked = get(bytes, size);
    if (SIZE_MAX + 1..TOO_MUCH).contains(&asked) {
        put(bytes, size, asked % (SIZE_MAX + 1));
    }
}

/// Offsets of user-space addresses in a request's structure.
pub(super) fn addresses(request: u32) -> &'static [usize] {
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
        ioctl::MEMORY_CHUNKS | ioctl::MEMORY_LIST_SET | ioctl::MEMORY_GIVE_SET => {
            &[offset_of!(abi::Chunks, chunks)]
        }
        ioctl::DESCRIPTION => &[offset_of!(abi::Description, bytes)],
        ioctl::NODE_DEVICES => &[offset_of!(abi::Devices, devices)],
        ioctl::GRANT_ADD => &[offset_of!(abi::grant::GrantAdd, pages)],
        _ => &[],
    }
}

fn get(bytes: &[u8], offset: usize) -> u64 {
    u64::read_from_prefix(&bytes[offset..]).map_or(0, |(value, _)| value)
}

fn put(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
}

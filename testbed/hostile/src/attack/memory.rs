//! Memory: that of others, and the node's own where base and monitor look.

use core::ptr;

use insula_bare::PhysAddr;

use super::Core;
use crate::orders::{ORDERS, word};
use crate::start::ARENA;

const PAGE: u64 = 4096;
/// Registers of the local APICs, of I/O APICs, of PCI configuration, firmware.
const DEVICES: [u64; 6] = [
    0xfee0_0000,
    0xfee0_3000,
    0xfec0_0000,
    0xb000_0000,
    0xfed0_0000,
    0xffff_0000,
];
/// Machines have no memory above, as far as this kernel maps it.
const ADDRESS_BITS: u32 = 39;
/// Bytes of the node's channels that are overwritten.
const CHANNELS: u64 = 64 << 10;

/// Accesses the arena in all ways; or the node's own channels and doorbells, at random.
pub(super) extern "C" fn pass(core: &mut Core) {
    let channels = word(&ORDERS.channels);
    let start = match channels != 0 && core.random.once_in(4) {
        true => channels + core.random.below(CHANNELS),
        false => core.arena + core.random.below(ARENA - PAGE),
    };
    access(core, start & !7);
}

/// Accesses memory of somebody else.
pub(super) extern "C" fn break_out(core: &mut Core) {
    let random = core.random.word();
    let foreign = word(&ORDERS.foreign_memory);
    let monitor = word(&ORDERS.monitor);
    let address = match core.random.below(6) {
        0 => foreign + random % PAGE,
        1 if monitor != 0 => monitor + random % (1 << 20),
        1 | 2 => core.random.of(&DEVICES) + random % PAGE,
        3 => random % (1 << 20),
        4 => random % (1 << 32),
        _ => random & ((1 << ADDRESS_BITS) - 1),
    };
    // Half of them walk on from there.
    let steps = if core.random.once_in(2) { 1 } else { 64 };
    for step in 0..steps {
        access(core, (address & !7) + step * PAGE);
    }
}

/// Reads, writes or changes a word.
fn access(core: &mut Core, address: u64) {
    let at = PhysAddr(address & ((1 << ADDRESS_BITS) - 1))
        .in_direct_map()
        .cast::<u64>();
    let value = core.random.word();
    // SAFETY: none: this is what the monitor is for. Where it is the arena, nobody else uses it.
    unsafe {
        match core.random.below(4) {
            0 => drop(at.read_volatile()),
            1 => at.write_volatile(value),
            2 => core::arch::asm!("lock xadd [{}], {}", in(reg) at, inout(reg) value => _),
            _ => ptr::write_bytes(at.cast::<u8>(), value as u8, 64),
        }
    }
}

//! Page tables: with entries of any kind, and from anywhere.

use insula_bare::memory::DIRECT_MAP;
use insula_bare::{PhysAddr, cpu, memory};

use super::Core;
use crate::orders::{ORDERS, word};
use crate::start::ARENA;

const PAGE: u64 = 4096;
const ENTRIES: u64 = 512;
/// Entries of the root that stay as they are: the direct map and the image.
const DIRECT_ENTRY: u64 = DIRECT_MAP >> 39 & (ENTRIES - 1);
const IMAGE_ENTRY: u64 = ENTRIES - 1;
/// Pages of the arena that are tables, all of all levels at once.
const TABLES: u64 = 16;
const PRESENT: u64 = 1;

/// A table whose entries lead into the arena.
pub(super) extern "C" fn pass(core: &mut Core) {
    scramble(core, |core| {
        core.arena + core.random.below(ARENA / PAGE) * PAGE
    });
    touch(core);
}

/// A table whose entries lead anywhere; or a root from anywhere.
pub(super) extern "C" fn break_out(core: &mut Core) {
    if core.random.once_in(8) {
        let root = anywhere(core);
        // SAFETY: none: this is what the monitor is for.
        return unsafe { cpu::set_root(root) };
    }
    scramble(core, anywhere);
    touch(core);
}

fn anywhere(core: &mut Core) -> u64 {
    let random = core.random.word() & 0x000f_ffff_ffff_f000;
    match core.random.below(5) {
        0 => word(&ORDERS.foreign_memory),
        1 => word(&ORDERS.monitor) & !(PAGE - 1),
        2 => random & 0xffff_ffff,
        3 => random & ((1 << 40) - 1),
        _ => random,
    }
}

/// Fills tables at the start of the arena, and loads the first.
fn scramble(core: &mut Core, mut frame: impl FnMut(&mut Core) -> u64) {
    for number in 0..TABLES * 8 {
        let (table, slot) = (core.random.below(TABLES), core.random.below(ENTRIES));
        // Flags of any kind, reserved bits among them; most are present, and lead to another table.
        let flags = core.random.word() & 0xfff0_0000_0000_0fff | PRESENT;
        let to = match number % 2 {
            0 => core.arena + core.random.below(TABLES) * PAGE,
            _ => frame(core),
        };
        let is_kept = table == 0 && [DIRECT_ENTRY, IMAGE_ENTRY].contains(&slot);
        if !is_kept {
            put(core.arena + table * PAGE + slot * 8, to | flags);
        }
    }
    for slot in [DIRECT_ENTRY, IMAGE_ENTRY] {
        put(core.arena + slot * 8, own_entry(slot));
    }
    // SAFETY: it maps the kernel as the current one does.
    unsafe { cpu::set_root(core.arena) }
}

/// The entry of the kernel's own root.
fn own_entry(slot: u64) -> u64 {
    let mut entry = [0; 8];
    let root = crate::start::root();
    // SAFETY: the root is memory of this kernel.
    unsafe { memory::read(PhysAddr(root + slot * 8), &mut entry) };
    u64::from_le_bytes(entry)
}

fn put(at: u64, entry: u64) {
    // SAFETY: it is in the arena.
    unsafe { memory::write(PhysAddr(at), &entry.to_le_bytes()) }
}

/// Accesses addresses that the tables map, perhaps. Ends with the kernel's own table.
fn touch(core: &mut Core) {
    for _ in 0..16 {
        let address = (core.random.word() & 0x7fff_ffff_ffff) as *mut u64;
        let is_write = core.random.once_in(2);
        // SAFETY: none: this is what the monitor is for. An exception ends the act.
        unsafe {
            match is_write {
                true => address.write_volatile(core.random.word()),
                false => drop(address.read_volatile()),
            }
        }
    }
    // SAFETY: the kernel's own.
    unsafe { cpu::set_root(crate::start::root()) }
}

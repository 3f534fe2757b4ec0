//! I/O ports.

use core::arch::asm;

use super::Core;

/// Ports at which stock kernels look for legacy devices.
const LEGACY: [u16; 14] = [
    0x20, 0x21, 0x40, 0x42, 0x43, 0x60, 0x61, 0x70, 0x71, 0x80, 0xa1, 0x3f8, 0xcf8, 0xcfc,
];

/// Reads or writes a legacy device.
pub(super) extern "C" fn pass(core: &mut Core) {
    let port = core.random.of(&LEGACY);
    let kind = core.random.below(8);
    access(core, port, kind);
}

/// Reads or writes any port.
pub(super) extern "C" fn break_out(core: &mut Core) {
    let port = core.random.word() as u16;
    let kind = core.random.below(10);
    access(core, port, kind);
}

/// An access of each size; the last kinds go to or come from memory.
fn access(core: &mut Core, port: u16, kind: u64) {
    let value = core.random.word() as u32;
    let mut buffer = [value; 4];
    let memory = buffer.as_mut_ptr();
    // SAFETY: none: this is what the monitor is for. The buffer is large enough.
    unsafe {
        match kind {
            0..3 => asm!("out dx, al", in("dx") port, in("al") value as u8),
            3 => asm!("out dx, ax", in("dx") port, in("ax") value as u16),
            4 => asm!("out dx, eax", in("dx") port, in("eax") value),
            5 => asm!("in al, dx", in("dx") port, out("al") _),
            6 => asm!("in ax, dx", in("dx") port, out("ax") _),
            7 => asm!("in eax, dx", in("dx") port, out("eax") _),
            8 => asm!("rep insd", in("dx") port, inout("rdi") memory => _, inout("rcx") 2_u64 => _),
            _ => asm!("outsb", in("dx") port, inout("rsi") memory => _),
        }
    }
}

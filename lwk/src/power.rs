//! The kernel's ends: power button, power-off, panic.

#![allow(unsafe_code, reason = "registers are bytes of memory, named by tables")]

use core::panic::PanicInfo;

use insula_bare::memory::{self, PhysAddr};
use insula_bare::{apic, cpu, trap};
use spin::Once;

use crate::log::{self, Level};
use crate::world::{Register, World};
use crate::{cores, info};

/// The vector of the power button.
pub const BUTTON_VECTOR: u8 = 0x30;

/// What ends the node.
struct Registers {
    power_off: Register,
    power_button: u64,
}

static REGISTERS: Once<Registers> = Once::new();

/// Notes where the registers are.
pub fn prepare(world: &World) {
    REGISTERS.call_once(|| Registers {
        power_off: world.power_off,
        power_button: world.power_button,
    });
}

/// From now on the base may press the power button.
pub fn listen() {
    let Some(registers) = REGISTERS.get() else {
        return;
    };
    let entry = u32::from(BUTTON_VECTOR).to_le_bytes();
    // SAFETY: the tables name a word of the node's low memory that nothing else uses.
    unsafe { memory::write(PhysAddr(registers.power_button), &entry) }
}

/// Switches the node off. The base stops its cores.
pub fn off(why: &str) -> ! {
    info!("power off: {why}");
    log::mark_off();
    if let Some(Registers { power_off, .. }) = REGISTERS.get() {
        // SAFETY: the tables name a byte that nothing else uses.
        unsafe { memory::write(PhysAddr(power_off.address), &[power_off.value]) }
    }
    cpu::halt_for_ever()
}

/// Logs the panic, marks it for the base to see, and stops all cores.
pub fn panicked(info: &PanicInfo<'_>) -> ! {
    if trap::set_at_end() {
        let core = cores::number();
        cores::others(apic::nmi);
        log::break_lock(core);
        log::append(
            Level::Emergency,
            format_args!("Kernel panic - not syncing: {}", info.message()),
        );
        if let Some(place) = info.location() {
            log::append(Level::Emergency, format_args!("at {place}"));
        }
    }
    cpu::halt_for_ever()
}

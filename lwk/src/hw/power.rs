//! Power button, power-off and panic.

#![allow(unsafe_code, reason = "tables give the addresses of the registers")]

use core::panic::PanicInfo;

use insula_bare::memory::{self, PhysAddr};
use insula_bare::{apic, cpu, trap};
use spin::Once;

use crate::hw::boot_info::BootInfo;
use crate::hw::boot_info::acpi::Register;
use crate::hw::cores;
use crate::hw::log::{self, Level};
use crate::info;

/// Vector of the power button.
pub const BUTTON_VECTOR: u8 = 0x30;

/// Registers for power management.
struct Registers {
    power_off: Register,
    power_button: u64,
}

static REGISTERS: Once<Registers> = Once::new();

/// Stores the addresses of the registers.
pub fn init(boot_info: &BootInfo) {
    REGISTERS.call_once(|| Registers {
        power_off: boot_info.power_off,
        power_button: boot_info.power_button,
    });
}

/// Lets the base press the power button from now on.
pub fn enable_button() {
    let Some(registers) = REGISTERS.get() else {
        return;
    };
    let entry = u32::from(BUTTON_VECTOR).to_le_bytes();
    // SAFETY: the tables name a word of the node's low memory that nothing else uses.
    unsafe { memory::write(PhysAddr(registers.power_button), &entry) }
}

/// Powers the node off. The base stops its cores.
pub fn off(why: &str) -> ! {
    info!("power off: {why}");
    log::mark_off();
    if let Some(Registers { power_off, .. }) = REGISTERS.get() {
        // SAFETY: the tables name a byte that nothing else uses.
        unsafe { memory::write(PhysAddr(power_off.address), &[power_off.value]) }
    }
    cpu::halt_forever()
}

/// Logs the panic, marks it for the base, and stops all cores.
pub fn panicked(info: &PanicInfo<'_>) -> ! {
    if trap::stop_cores_on_nmi() {
        let core = cores::number();
        cores::for_other_apic_ids(apic::send_nmi);
        log::force_unlock(core);
        log::append(
            Level::Emergency,
            format_args!("Kernel panic - not syncing: {}", info.message()),
        );
        if let Some(place) = info.location() {
            log::append(Level::Emergency, format_args!("at {place}"));
        }
    }
    cpu::halt_forever()
}

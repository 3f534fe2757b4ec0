//! Power button, power-off and panic.

#![allow(unsafe_code, reason = "tables give the addresses of the registers")]

use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

use insula_bare::memory::{self, PhysAddr};
use insula_bare::{apic, called, cpu, trap};
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
    stop()
}

/// Stops this core for good: a shared one goes back to the base.
fn stop() -> ! {
    match called::page() {
        None => cpu::halt_forever(),
        Some(page) => page.leave_for_good(),
    }
}

/// Logs the panic, marks it for the base, and stops all cores.
pub fn panicked(info: &PanicInfo<'_>) -> ! {
    if is_first_panic() {
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
    stop()
}

/// Whether no panic was reported before. From now on NMIs stop cores; those of a shared core are
/// the base's.
fn is_first_panic() -> bool {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    match called::page() {
        None => trap::stop_cores_on_nmi(),
        Some(_) => !REPORTED.swap(true, Ordering::SeqCst),
    }
}

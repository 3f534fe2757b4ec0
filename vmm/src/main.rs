//! The monitor's image: entry of each core and panic handler. All else is in the library.

#![cfg_attr(target_os = "none", no_std, no_main)]
#![allow(unsafe_code, reason = "an entry and a panic handler have fixed names")]

#[cfg(target_os = "none")]
mod image {
    use insula_vmm::vcpu;

    /// Called by `entry.S` with the address of the core's area.
    #[unsafe(no_mangle)]
    extern "C" fn vmm_core(area: u64) -> ! {
        // SAFETY: the base laid the area out and gave it to this core alone.
        unsafe { vcpu::run(area) }
    }

    #[panic_handler]
    fn panicked(info: &core::panic::PanicInfo<'_>) -> ! {
        vcpu::panicked(info)
    }
}

/// A host has nothing to run.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("This is a monitor: build it for x86_64-unknown-none (make kernels).");
    std::process::exit(1);
}

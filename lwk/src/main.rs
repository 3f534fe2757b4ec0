//! The kernel's image: entry point and panic handler. All else is in the library.

#![cfg_attr(target_os = "none", no_std, no_main)]
#![allow(unsafe_code, reason = "an entry and a panic handler have fixed names")]

#[cfg(target_os = "none")]
mod image {
    use insula_lwk::hw::power;
    use insula_lwk::start;

    /// Called by `boot.S` of `bare` on the first core.
    #[unsafe(no_mangle)]
    extern "C" fn bare_first_core(boot_params: u64, image: u64, shared: u64) -> ! {
        start::first_core(boot_params, image, shared)
    }

    #[panic_handler]
    fn panicked(info: &core::panic::PanicInfo) -> ! {
        power::panicked(info)
    }
}

/// A host has nothing to run.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("This is a kernel: build it for x86_64-unknown-none (make kernels).");
    std::process::exit(1);
}

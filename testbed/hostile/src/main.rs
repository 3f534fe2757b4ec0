//! The kernel's image: entry point and panic handler. All else is in the library.

#![cfg_attr(target_os = "none", no_std, no_main)]
#![allow(unsafe_code, reason = "an entry and a panic handler have fixed names")]

#[cfg(target_os = "none")]
mod image {
    use insula_hostile::start;

    /// Called by `boot.S` of `bare` on the first core.
    #[unsafe(no_mangle)]
    extern "C" fn bare_first_core(boot_params: u64, image: u64) -> ! {
        start::first_core(boot_params, image)
    }

    #[panic_handler]
    fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
        start::panicked()
    }
}

/// A host has nothing to run.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("This is a kernel: build it for x86_64-unknown-none (scripts/kernels hostile).");
    std::process::exit(1);
}

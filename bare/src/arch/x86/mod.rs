//! x86-64, 64-bit mode. Source: Intel SDM volume 3 and AMD APM volume 2.

pub mod apic;
#[cfg(feature = "boot-protocol")]
pub mod called;
pub mod cpu;
mod descriptor;
#[cfg(feature = "programs")]
pub mod extended_state;
mod machine_check;
pub mod mitigation;
pub mod paging;
pub mod per_core;
#[cfg(feature = "programs")]
pub mod ports;
#[cfg(feature = "programs")]
pub mod program_mode;
#[cfg(feature = "programs")]
pub mod segment_bases;
#[cfg(feature = "boot-protocol")]
pub mod start;
pub mod trap;
#[cfg(feature = "programs")]
pub mod user;

#[cfg(target_os = "none")]
mod assembly {
    #[cfg(feature = "boot-protocol")]
    core::arch::global_asm!(include_str!("boot.S"), options(att_syntax));
    #[cfg(feature = "boot-protocol")]
    core::arch::global_asm!(include_str!("called.S"), options(att_syntax));
    core::arch::global_asm!(include_str!("trap.S"), options(att_syntax));
}
